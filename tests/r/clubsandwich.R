# Four data sets that come with R packages, by clubSandwich 0.5.8: standard errors and Satterthwaite degrees of
# freedom of vcovCR(). By R 4.2.2, nlme 3.1-162, AER 1.2-10, plm 2.6-2, mlmRev 1.0-8. From this folder: Rscript clubsandwich.R
suppressMessages({library(clubSandwich); library(AER)})
data(Oats, package = "nlme"); data(Fatalities, package = "AER")
data(Cigar, package = "plm"); data(Contraception, package = "mlmRev")
Oats$Block <- as.character(Oats$Block)
Fatalities$rate <- 1e4 * Fatalities$fatal / Fatalities$pop
Contraception$used <- as.numeric(Contraception$use == "Y")
Cigar$state <- factor(Cigar$state)
fits <- list(
  Oats = list(lm(yield ~ nitro + Variety, Oats), Oats$Block, c("CR0", "CR1", "CR1S", "CR2", "CR3")),
  Fatalities = list(lm(rate ~ beertax + unemp + log(income), Fatalities), Fatalities$state, c("CR0", "CR1", "CR1S", "CR2", "CR3")),
  Cigar = list(lm(log(sales) ~ log(price) + log(ndi) + log(pimin) + state, Cigar), Cigar$state, c("CR0", "CR2")),
  Contraception = list(glm(used ~ age + I(age^2 / 100) + urban + livch, binomial, Contraception,
    control = list(epsilon = 1e-14)), Contraception$district, c("CR0", "CR1", "CR1S", "CR3")))
rows <- list()
for (name in names(fits)) {
  m <- fits[[name]][[1]]; cluster <- fits[[name]][[2]]
  shown <- grep("^state", names(coef(m)), invert = TRUE, value = TRUE)
  if (name == "Cigar") shown <- setdiff(shown, "(Intercept)")
  for (type in fits[[name]][[3]]) {
    made <- coef_test(m, vcovCR(m, cluster, type), test = "Satterthwaite", coefs = shown)
    dof <- if (inherits(m, "glm")) NA else made$df_Satt  # of a glm they use its own working model
    rows[[length(rows) + 1]] <- data.frame(data = name, correction = type, coefficient = shown,
      estimate = signif(made$beta, 12), se = signif(made$SE, 12), dof = signif(dof, 10))
  }
}
write.csv(do.call(rbind, rows), "clubsandwich.csv", row.names = FALSE)
