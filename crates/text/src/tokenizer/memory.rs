//! Sizes of a tokenizer, which are known before it is built: their limits, and the memory that
//! follows from them.

/// Maximum size of a token; published tokenizers have tokens of a few hundred bytes.
pub(in super::super) const MAX_TOKEN: usize = 4096;
/// Maximum number of tokens: four times the largest vocabulary.
const MAX_TOKENS: usize = 1 << 20;
/// Maximum total size of the added tokens; some tokenizers have thousands.
const MAX_ADDED: usize = 4 << 20;
/// Maximum total size of tokens with scores, which become a tree with a node for each byte.
const MAX_SCORED: usize = 8 << 20;
/// Maximum number of merge rules; published vocabularies have about two for each token.
const MAX_MERGES: usize = 1 << 20;
const MERGES_PER_TOKEN: usize = 16;

/// Maximum memory of a tokenizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenizerMemory {
    /// Bytes of the finished tokenizer.
    pub held: u64,
    /// Peak bytes while it is built, including the finished tokenizer.
    pub peak: u64,
}

/// Numbers and sizes of the parts of a tokenizer.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct TokenizerSizes {
    pub(in super::super) kind: ModelKind,
    /// Number of tokens of the model.
    pub(in super::super) tokens: usize,
    /// Total size of their texts.
    pub(in super::super) bytes: usize,
    /// Size of the longest.
    pub(in super::super) longest: usize,
    /// True for a list with scores in a `tokenizer.json`, false for a map of ids.
    pub(in super::super) scored: bool,
    /// Number of merges that are listed.
    pub(in super::super) merges: usize,
    /// Number of added tokens.
    pub(in super::super) added: usize,
    /// Total size of the added tokens.
    pub(in super::super) added_bytes: usize,
    /// Size of the longest added token.
    pub(in super::super) longest_added: usize,
}

/// What decides how much memory a token takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) enum ModelKind {
    /// Byte pair encoding with a list of merges.
    #[default]
    Bpe,
    /// Byte pair encoding with scores.
    ScoredBpe,
    /// A model of the `tokenizers` crate.
    Other,
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
/// Bytes of a score, finished and while scores are sorted.
const SCORE: [u64; 2] = [4, 17];
/// Bytes of a token in the models of the `tokenizers` crate, which first read a tree of values. The
/// tree takes more where it keeps the order of names.
const TREE: [u64; 2] = [640, 2400];

impl TokenizerSizes {
    /// Adds a token of the model.
    pub(in super::super) fn add(&mut self, len: usize) {
        self.tokens += 1;
        self.bytes += len;
        self.longest = self.longest.max(len);
    }

    /// Adds an added token.
    pub(in super::super) fn add_added(&mut self, len: usize) {
        self.added += 1;
        self.added_bytes += len;
        self.longest_added = self.longest_added.max(len);
    }

    /// Fails if there is more of something than in any known tokenizer. Returns what it is.
    pub(in super::super) fn check(&self) -> Result<(), String> {
        let TokenizerSizes { tokens, bytes, merges, .. } = *self;
        if self.longest_added > MAX_TOKEN || self.added_bytes > MAX_ADDED {
            return Err(format!("added tokens of {} bytes", self.added_bytes));
        }
        if tokens > MAX_TOKENS {
            return Err(format!("{tokens} tokens"));
        }
        if merges > MAX_MERGES.min(tokens.saturating_mul(MERGES_PER_TOKEN)) {
            return Err(format!("{merges} merges for {tokens} tokens"));
        }
        if self.longest > MAX_TOKEN {
            return Err(format!("a token of {} bytes", self.longest));
        }
        if self.scored && bytes > MAX_SCORED {
            return Err(format!("tokens of {bytes} bytes"));
        }
        Ok(())
    }

    /// Size of the longest token.
    pub(in super::super) fn longest(&self) -> usize {
        self.longest.max(self.longest_added)
    }

    /// Memory for building a tokenizer, without the file.
    pub(in super::super) fn memory(&self) -> TokenizerMemory {
        let numbers = [self.tokens, self.bytes, self.merges, self.added, self.added_bytes];
        let [tokens, bytes, merges, added, added_bytes] = numbers.map(|number| number as u64);
        let always = STEPS + ADDED[0] * added + ADDED[1] * added_bytes;
        let [held, peak] = match self.kind {
            ModelKind::Bpe => [bytes + ENTRY * tokens + MERGE * merges; 2],
            ModelKind::ScoredBpe => SCORE.map(|score| bytes + (ENTRY + score) * tokens),
            ModelKind::Other => TREE.map(|each| each * tokens + 8 * bytes),
        };
        TokenizerMemory { held: always + held, peak: always + peak }
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
                // Lists are as long as the file says from the beginning.
                assert!(peak <= held + STEPS && peak <= 2 * json.len() as u64 + STEPS, "{case}");
            }
            drop(made);
        }
    }
}
