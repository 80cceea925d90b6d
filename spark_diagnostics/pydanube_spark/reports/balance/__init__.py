"""The cluster-balance report: loads hour by hour, and moves that would have helped."""
