"""Operations about operations: finding one by words, calling one that only reads."""
