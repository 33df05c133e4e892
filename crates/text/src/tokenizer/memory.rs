//! Memory of a tokenizer, estimated from the numbers of its tokens and merges.

/// Maximum memory of a tokenizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenizerMemory {
    /// Bytes of the finished tokenizer.
    pub held: u64,
    /// Peak bytes while it is built, including the finished tokenizer.
    pub peak: u64,
}

/// Bytes of patterns, steps and character tables.
const STEPS: u64 = 1 << 20;
/// Bytes of an added token, with its maps and its part of the automaton that finds it, and bytes
/// for each of its bytes.
const ADDED: [u64; 2] = [1 << 10, 128];
/// Bytes of a vocabulary entry: end, id, place by id, and a hash bucket of five bytes, with up to
/// sixteen buckets for seven entries.
const ENTRY: u64 = 12 + 12;
/// Bytes of a merge: three ids and a hash bucket.
const MERGE: u64 = 12 + 12;
/// Bytes of a token in the models of the `tokenizers` crate, which first read a tree of values. The
/// tree takes more where it keeps the order of names.
const TREE: [u64; 2] = [640, 2400];

impl TokenizerMemory {
    /// Memory of a tokenizer with `tokens` tokens of `bytes` bytes in all, `merges` merges, and
    /// added tokens of these lengths.
    pub(super) fn of(
        is_bpe: bool,
        [tokens, bytes, merges]: [usize; 3],
        added: impl Iterator<Item = usize>,
    ) -> TokenizerMemory {
        let [tokens, bytes, merges] = [tokens, bytes, merges].map(|number| number as u64);
        let added: u64 = added.map(|len| ADDED[0] + ADDED[1] * len as u64).sum();
        let always = STEPS + added;
        match is_bpe {
            true => {
                let held = bytes + ENTRY * tokens + MERGE * merges;
                // Growing lists have up to twice the capacity that they need.
                let growing = bytes + 8 * tokens + 12 * merges;
                TokenizerMemory { held: always + held, peak: always + held + growing }
            }
            false => {
                let [held, peak] = TREE.map(|each| each * tokens + 8 * bytes);
                TokenizerMemory { held: always + held, peak: always + peak }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Tokenizer;

    /// A tokenizer with `tokens` tokens of some letters, and two merges for each of most of them.
    fn file(kind: &str, tokens: usize) -> Value {
        let letter = |digit: usize| char::from(b'a' + digit as u8);
        let mut texts: Vec<String> = (0..26).map(|digit| letter(digit).to_string()).collect();
        let mut merges = Vec::new();
        for at in 0..tokens - 26 {
            let left = texts[at / 26].clone();
            let right = letter(at % 26);
            let joined = format!("{left}{right}");
            merges.push(json!([left, right.to_string()]));
            merges.push(json!([left, right.to_string()]));
            texts.push(joined);
        }
        let added = json!([{
            "id": 0, "content": "a", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }]);
        let mut model = json!({"type": kind, "unk_token": "a", "merges": merges});
        match kind {
            "Unigram" => {
                model["unk_id"] = json!(0);
                model["vocab"] = texts.iter().map(|text| json!([text, -1.5])).collect();
            }
            _ => {
                let vocab = texts.iter().enumerate().map(|(id, text)| (text.clone(), json!(id)));
                model["vocab"] = Value::Object(vocab.collect());
            }
        }
        if kind == "WordPiece" {
            model["continuing_subword_prefix"] = json!("##");
            model["max_input_chars_per_word"] = json!(100);
        }
        json!({"version": "1.0", "added_tokens": added, "model": model})
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "the figures are those of docs/benchmarks/kernels.md")]
    fn a_tokenizer_takes_at_most_what_is_known_before() {
        for (kind, tokens) in [
            ("BPE", 2_000),
            ("BPE", 40_000),
            ("BPE", 262_144),
            ("WordPiece", 40_000),
            ("WordLevel", 40_000),
            ("Unigram", 40_000),
        ] {
            let json = file(kind, tokens).to_string().into_bytes();
            let mut known = TokenizerMemory::default();
            let mut made = None;
            let taken = allocation_counter::measure(|| {
                let fits = |memory| {
                    known = memory;
                    Ok::<_, crate::TokenizerError>(())
                };
                made = Some(Tokenizer::read(&json, fits).unwrap());
            });
            let held = taken.bytes_current as u64;
            let peak = taken.bytes_max;
            let case = format!("{kind} {tokens}: {held}, {peak} of {known:?}, file {}", json.len());
            println!("{case}");
            assert!(held <= known.held && peak <= known.peak, "{case}");
            assert!(known.peak <= STEPS + 3 * peak, "{case}");
            if kind == "BPE" {
                // With the file itself at most three times its size.
                assert!(peak <= 2 * json.len() as u64 + STEPS, "{case}");
            }
            drop(made);
        }
    }
}
