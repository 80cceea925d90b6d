"""Operations on single messages and on dead letters."""
