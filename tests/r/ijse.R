# IJSE 0.1.1 beside what it read: IJ_se() of a brms fit with 8 schools of 3 pupils (data.csv), by school and by row.
# By R 4.2.2, brms 2.18.0, IJSE 0.1.1. From this folder: Rscript ijse.R
suppressMessages({library(brms); library(posterior); library(IJSE)})
d <- read.csv("data.csv", colClasses = c(school = "character"), na.strings = "")
m <- brm(y ~ x, d, chains = 2, iter = 550, warmup = 400, refresh = 0, seed = 3)
draws <- as_draws_df(m)[c("b_Intercept", "b_x", "sigma")]
write.csv(signif(as.data.frame(draws), 10), "ijse-draws.csv", row.names = FALSE)
write.csv(signif(log_lik(m), 10), "ijse-loglik.csv", row.names = FALSE)
se <- rbind(clusters = IJ_se(m, d$school), rows = IJ_se(m))
write.csv(signif(se, 10), "ijse.csv")
