"""What is wrong, with evidence: findings and alerts."""
