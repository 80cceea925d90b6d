"""The broker looks at itself every few seconds: one sampler, short histories, findings, alerts."""
