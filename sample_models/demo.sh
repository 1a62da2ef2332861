#!/bin/sh
# Plans the sample models and a real network, runs each against its original, and shows
# what came of it. Called by `make demo`; writes into $OUT only.
set -eu
memplan="$BIN/memplan"
mkdir -p "$OUT"

say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }
run() { say "memplan $*"; "$memplan" "$@"; }

for model in branchy_cnn train_mlp nested_if_loop; do
  run optimize "sample_models/$model.onnx" -o "$OUT/$model.memplan.onnx"
done
run optimize sample_models/branchy_cnn.onnx -o "$OUT/level1.memplan.onnx" --level 1 --exclude fc1 --print-log
run optimize sample_models/dynamic_batch.onnx -o "$OUT/dynamic_batch.memplan.onnx" --dim batch=8

light=$("$BIN/python" -c 'import onnx, pathlib; print(pathlib.Path(onnx.__file__).parent / "backend/test/data/light/light_densenet121.onnx")')
run optimize "$light" -o "$OUT/light_densenet121.memplan.onnx"
run validate "$OUT/light_densenet121.memplan.onnx" --original "$light"
