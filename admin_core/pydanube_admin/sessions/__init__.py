"""Operations on connected producers and consumers."""
