"""Operations on schemas and topics' schemas: `models` their requests and results, `declarations` what faces read, the rest carries them out."""
