# The first example of csSampling's vignette: apistrat, a linear model weighted by wt, survey's design with fpc.
# By R 4.2.2, brms 2.18.0, survey 4.1-1, csSampling 0.1.0. From this folder: Rscript cssampling.R
suppressMessages({library(csSampling); library(rstan); library(brms); library(survey)})
data(api)
apistrat$wt <- apistrat$pw / mean(apistrat$pw)
dstrat <- svydesign(id = ~1, strata = ~stype, weights = ~wt, data = apistrat, fpc = ~fpc)
set.seed(12345)
f <- brmsformula(formula("api00 | weights(wt) ~ ell + meals + mobility"), center = FALSE)
m <- cs_sampling_brms(svydes = dstrat, brmsmod = f, data = apistrat, family = gaussian())
s <- svyglm(api00 ~ ell + meals + mobility, dstrat, control = list(epsilon = 1e-14))
before <- m$sampled_parms[, 1:4]; after <- m$adjusted_parms[, 1:4]
made <- cbind(posterior_mean = colMeans(before), posterior_sd = apply(before, 2, sd),
  adjusted_mean = colMeans(after), adjusted_sd = apply(after, 2, sd), svyglm = coef(s), svyglm_se = SE(s))
rownames(made) <- c("Intercept", "ell", "meals", "mobility")
write.csv(signif(made, 12), "cssampling.csv")
