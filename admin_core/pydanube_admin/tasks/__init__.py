"""Operations that take minutes, while they run and after."""
