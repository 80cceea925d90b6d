"""Operations on namespaces: `models` their requests and results, `declarations` what faces read, the rest carries them out."""
