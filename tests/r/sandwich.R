# vcovCL() of sandwich 3.0-2 and adjust_loglik() of chandwich 1.1.6 on data that come with R packages.
# By R 4.2.2, AER 1.2-10, mlmRev 1.0-8. From this folder: Rscript sandwich.R
suppressMessages({library(AER); library(sandwich); library(chandwich)})
data(Fatalities, package = "AER"); data(Contraception, package = "mlmRev")
Fatalities$rate <- 1e4 * Fatalities$fatal / Fatalities$pop
m <- lm(rate ~ beertax + unemp + log(income), Fatalities)
two <- sqrt(diag(vcovCL(m, ~ state + year, type = "HC1", multi0 = FALSE)))
one <- sqrt(diag(vcovCL(m, ~ state, type = "HC1")))
d <- transform(Contraception, used = as.numeric(use == "Y"))
f <- used ~ age + I(age^2 / 100) + urban + livch
X <- model.matrix(f, d)
g <- glm(f, binomial, d, control = list(epsilon = 1e-14))
loglik <- function(pars, data) { u <- drop(data$X %*% pars); data$y * u - log1p(exp(u)) }
a <- adjust_loglik(loglik, data = list(X = X, y = d$used), cluster = d$district, init = coef(g), p = ncol(X),
  par_names = colnames(X), alg_deriv = function(pars, data) data$X * drop(data$y - plogis(data$X %*% pars)),
  alg_hess = function(pars, data) -crossprod(data$X * sqrt(dlogis(drop(data$X %*% pars)))))
rows <- rbind(
  data.frame(package = "sandwich", data = "Fatalities", clusters = "state", coefficient = names(one), se = one),
  data.frame(package = "sandwich", data = "Fatalities", clusters = "state and year", coefficient = names(two), se = two),
  data.frame(package = "chandwich", data = "Contraception", clusters = "district", coefficient = colnames(X),
    se = attr(a, "adjSE")))
rows$se <- signif(rows$se, 12)
write.csv(rows, "sandwich.csv", row.names = FALSE)
