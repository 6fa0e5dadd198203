"""Makes a Llama of random weights and its tokenizer: make_model.py OUT [LAYERS HIDDEN POSITIONS].

By default 2 64 4096: 512 bytes of KV a token. 4 128 4096 has 2048 bytes a token.
"""

import random
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ("the quick brown fox jumps over a lazy dog while metrics count tokens and blocks move between host and "
         "device memory").split()
END, START, UNKNOWN = "</s>", "<s>", "<unk>"


def tokenizer():
    draw = random.Random(0)
    corpus = [" ".join(draw.choice(WORDS) for _ in range(30)) for _ in range(2000)]
    bpe = Tokenizer(models.BPE(unk_token=UNKNOWN))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=512, special_tokens=[UNKNOWN, START, END], initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=bpe, unk_token=UNKNOWN, bos_token=START, eos_token=END, pad_token=END)


def main():
    out = sys.argv[1]
    layers, hidden, positions = map(int, sys.argv[2:5] or (2, 64, 4096))
    torch.manual_seed(0)
    heads = hidden // 32
    words = tokenizer()
    words.save_pretrained(out)
    config = LlamaConfig(vocab_size=len(words), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
                         num_attention_heads=heads, num_key_value_heads=heads, head_dim=32,
                         max_position_embeddings=positions, bos_token_id=1, eos_token_id=2, tie_word_embeddings=True)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    print(f"{out}: {2 * layers * heads * 32 * 2} bytes of KV a token")


if __name__ == "__main__":
    main()
