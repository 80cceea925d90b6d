"""The cluster-balance report: how loads lay, hour by hour, and which moves would have helped."""
