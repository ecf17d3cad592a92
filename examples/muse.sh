# What run_muse_books.sh and run_muse_news.sh share; sourced after benchmark.sh.

# run_muse NAME TITLE: a corpus of MUSE from its files to the report.
run_muse() {
  local name="$1" title="$2"
  OUT="${OUT:-outputs/$name}"
  say "$title as rows"
  if ! [ -e "$OUT/data/manifest.json" ]; then
    check_source "$name"
    step python -m data_prep "${name/_/-}" --source "$DATA" --rouge rwku --out "$OUT/data" "${PREPARE[@]}"
  fi
  check_methods "$OUT/data"
  run_benchmark "$name" "$OUT/data" "$OUT"
  say_sizes "$name"
  say "done; open $OUT/report_$NAME.html"
}
