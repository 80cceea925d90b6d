"""Self-observation, every few seconds: one sampler, short histories, findings, alerts."""
