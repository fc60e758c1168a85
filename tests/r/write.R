# Small fits as users of R write them; the files here are by R 4.2.2, brms 2.18.0, rstanarm 2.21.3, posterior 1.4.0.
# From this folder: Rscript write.R. Too few draws for an answer, enough for names and numbers.
suppressMessages({library(brms); library(rstanarm); library(posterior)})
set.seed(1); school <- rep(c("north", "south", "NA", "01", "1", "hill", "lake", "sea"), each = 3)
d <- data.frame(school, x = rep(rnorm(8), each = 3)); d$y <- d$x + rep(rnorm(8), each = 3) + rnorm(24)
d[c("x", "y")] <- round(d[c("x", "y")], 3)
write.csv(d, "data.csv")
short <- function(x) { x[] <- lapply(x, signif, 6); x }
a <- list(data = d, chains = 2, iter = 450, warmup = 400, refresh = 0, seed = 1)
m <- do.call(brm, c(list(y ~ x), a))
write.csv(short(as_draws_df(m)), "brms-draws.csv")
write.csv(signif(log_lik(m), 6), "brms-loglik.csv", row.names = FALSE)
m <- do.call(brm, c(list(y ~ x + (1 | school)), a))
write.csv(short(as_draws_df(m)), "brms-groups.csv", row.names = FALSE)
write.csv(signif(log_lik(m), 5), "brms-groups-loglik.csv")
m <- do.call(stan_glm, c(list(y ~ x + I(x^2 / 2)), a))
write.csv(short(cbind(as_draws_df(m$stanfit), log_lik = log_lik(m))), "rstanarm.csv")
m <- do.call(stan_glmer, c(list(y ~ x + (1 | school)), a))
s <- short(as_draws_df(m$stanfit)); write.csv(s[1:20, ], "rstanarm-groups.csv")
