"""Special tokens and their ids, which all vocabularies and models share."""

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
PAD, UNK, BOS, EOS = range(4)  # padding, unknown token, begin and end of sentence
