#!/usr/bin/env bash
# Trains the rows of "Architectures and objectives in small" of the model card, one after another on
# one thread, and prints the table: trainer/configs/compare/run.sh [ROW…]. Needs `laser` on the PATH
# and the corpus at trainer/configs/data; what it makes lies below trainer/configs/runs/compare.
# STEPS is the length of every row (250).
set -euo pipefail
cd "$(dirname "$0")"
runs=../runs/compare
mkdir -p "$runs"

[ -e "$runs/tokenizer.json" ] || laser --threads 1 tokenizer --data data.toml --kind bpe \
  --vocab-size 8000 --lowercase --sentences 200000 -o "$runs/tokenizer.json"
[ -e "$runs/corpus.packed" ] || laser --threads 1 pack --data data.toml \
  --tokenizer "$runs/tokenizer.json" --max-tokens 32 -o "$runs/corpus.packed"

bilstm() { # LAYERS POOLING
  echo "model.encoder={ architecture = 'bilstm', embedding_size = 128, hidden_size = 128, layers = $1, pooling = '$2', append_eos = true }"
}
mean="model.encoder={ architecture = 'mean', embedding_size = 256, pooling = 'weighted' }"
transformer="model.encoder={ architecture = 'transformer', hidden_size = 128, layers = 2, heads = 4, intermediate_size = 256, max_positions = 256, type_vocab_size = 0, layer_norm_eps = 1e-5, activation = 'gelu', norm = 'pre', pooling = 'mean' }"
dual="objective.dual={ scale = 30.0, margin = 0.2 }"
translation=(
  "objective.nmt.decoder={ embedding_size = 128, language_size = 16, hidden_size = 256 }"
  "sampling.targets=['en', 'es']"
)

# Prints the mean over languages of xx→en accuracy by cosine, in percent.
accuracy() { # MODEL SET…
  local model=$1
  shift
  laser --threads 1 eval similarity -m "$model" --precision f32 --metric cosine --format tsv \
    --languages de,es,fr,it,nl,pt "$@" |
    awk -F'\t' '$3 == "en" { sum += $8; n++ } END { printf "%.1f", 100 * sum / n }'
}

row() { # NAME WORDS CHANGE…
  local name=$1 words=$2
  shift 2
  [ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " == *" $name "* ]] || return 0
  local changes=(--set "output=$runs/$name" --set "run.steps=${STEPS:-250}")
  for change; do changes+=(--set "$change"); done
  local TIMEFORMAT=%U
  { time laser train --quiet base.toml "${changes[@]}" >"$runs/$name.log" 2>&3; } 3>&2 2>"$runs/$name.seconds"
  local model=$runs/$name/last data=../data/dev
  printf '| %s | %.0f | %s | %s | %s |\n' "$words" "$(tail -n 1 "$runs/$name.seconds")" \
    "$(accuracy "$model" $data/ntrex.tsv.zst)" \
    "$(accuracy "$model" ../../../demo/sentences.tsv --distractors \
      $data/{tanaka_ja,stsb_mt,pratham_storybook,bashkir1000}.tsv.zst)" \
    "$(accuracy "$model" $data/multi30k.tsv.zst)"
}

wanted=("$@")
echo '| run | processor seconds | ntrex | demo+ | multi30k |'
echo '| --- | ---: | ---: | ---: | ---: |'
row mean "mean of tokens, width 256, dual encoder" "$dual" "$mean" \
  optimizer.learning_rate=0.02 optimizer.embedding_rate_factor=1.0
row max "BiLSTM, 1 layer, max-pooling, dual encoder" "$dual"
row last "BiLSTM, 1 layer, last state, dual encoder" "$dual" "$(bilstm 1 last)"
row layers "BiLSTM, 2 layers, max-pooling, dual encoder" "$dual" "$(bilstm 2 max)"
row transformer "transformer, 2 layers, width 128, mean-pooling, dual encoder" "$dual" "$transformer" \
  optimizer.learning_rate=0.001
row nmt "BiLSTM, 1 layer, max-pooling, translation into English or Spanish" \
  "${translation[@]}"
row both "the same, translation and dual encoder summed" "$dual" "${translation[@]}"
