"""Operations on the cold tier and the journal: `models` their requests and results, `declarations` what faces read, the rest carries them out."""
