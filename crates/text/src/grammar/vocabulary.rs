//! The vocabulary of a model, as bytes.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread::Builder;

use crate::Tokenizer;
use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::toktrie::{
    INVALID_TOKEN, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie, TokenizerEnv,
};
use llguidance::{Matcher, TokenParser};

use super::bounds::sentence;
use super::marks::Marks;
use super::{Grammar, Structure, StructureError};

/// Stack size for compiling, which is recursive.
const STACK: usize = 16 << 20;
/// Maximum number of tokens, and of the bytes of all tokens, in the trie.
const TOKENS: usize = 1 << 22;
const BYTES: usize = 1 << 25;
/// Maximum length of a token in a structured text.
const LONGEST: usize = 512;

/// Bytes of a vocabulary, and bytes per token.
const FIXED: u64 = 1 << 20;
const TOKEN: u64 = 512;

/// Limits on the work for a structure, in terms of `ParserLimits`: some tens of milliseconds to
/// compile it, and some per token.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 4_000,
        max_grammar_size: 100_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

/// The vocabulary of a model as bytes, shared by all structures. Clones share the data.
#[derive(Clone)]
pub struct GrammarVocabulary {
    factory: Arc<ParserFactory>,
    /// Tokens that end a text.
    ends: Arc<[u32]>,
    /// Markers of answers.
    marks: Marks,
}

struct TokenTrie {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
}

impl GrammarVocabulary {
    /// Heap bytes of a vocabulary of `count` tokens, while it is built and afterwards.
    pub const fn bytes(count: usize) -> u64 {
        FIXED + TOKEN * count as u64
    }

    /// The vocabulary of a model with `count` tokens. `ends` are the tokens that end a text. These,
    /// special tokens, and `markers` of answers are part of no structure but the frame of tool
    /// calls.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        count: usize,
        ends: &[u32],
        markers: &[u32],
    ) -> Result<GrammarVocabulary, StructureError> {
        let known = tokenizer.vocab_size().min(count);
        let mut sum = 0;
        let mut words: Vec<Vec<u8>> = Vec::with_capacity(count);
        for id in (0..).take(known) {
            let mut word = tokenizer.bytes(id).unwrap_or_default();
            if tokenizer.is_special(id) || markers.contains(&id) || ends.contains(&id) {
                word.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
            }
            if word.len() > LONGEST {
                word.clear();
            }
            sum += word.len();
            words.push(word);
        }
        words.resize(count, Vec::new());
        if count > TOKENS || sum > BYTES {
            return Err(StructureError::Vocabulary("it has too many tokens"));
        }
        let ends: Arc<[u32]> = ends.iter().copied().filter(|&id| (id as usize) < known).collect();
        let known_marks = markers.iter().filter_map(|&id| Some((tokenizer.token(id)?, id)));
        let marks = Marks::new(known_marks.collect());
        let first = ends.first().copied().unwrap_or(INVALID_TOKEN);
        let factory = on_a_stack(move || {
            let mut trie = TokTrie::from(&TokRxInfo::new(count as u32, first), &words);
            drop(words);
            if !ends.is_empty() {
                trie = trie.with_eos_tokens(&ends);
            }
            let tokens: TokEnv = Arc::new(TokenTrie { trie, tokenizer });
            let capabilities = InferenceCapabilities { ff_tokens: true, ..Default::default() };
            let mut factory = ParserFactory::new(&tokens, capabilities, &[]).ok()?;
            factory.quiet();
            *factory.limits_mut() = limits();
            Some((factory, ends))
        });
        let (factory, ends) =
            factory.flatten().ok_or(StructureError::Vocabulary("its tokens are not usable"))?;
        Ok(GrammarVocabulary { factory: Arc::new(factory), ends, marks })
    }

    /// Compiles a structure. Fails if it exceeds the limits.
    pub fn compile(&self, structure: &Structure) -> Result<Grammar, StructureError> {
        let grammar = structure.grammar(&self.marks)?;
        let factory = &self.factory;
        let parser = on_a_stack(|| {
            let mut parser: Result<TokenParser, _> = factory.create_parser(grammar);
            if let Ok(parser) = &mut parser {
                force(parser)?;
            }
            let matcher = Matcher::new(parser);
            match matcher.get_error() {
                Some(error) => Err(StructureError::Refused(sentence(&error))),
                None => Ok(matcher),
            }
        });
        let Some(parser) = parser else {
            return Err(StructureError::Refused("it is too complex".to_owned()));
        };
        let mut grammar = Grammar::new(parser?, Arc::clone(&self.ends));
        // No text at all has this structure.
        grammar.check().map_err(|error| StructureError::Refused(error.0))?;
        Ok(grammar)
    }
}

/// Computes the forced beginning of a text, within the limits of one step. Otherwise the first mask
/// would set the limits, after the whole forced beginning.
fn force(parser: &mut TokenParser) -> Result<(), StructureError> {
    let nothing = EmptyMask(parser.token_env.clone());
    // This call sets the limits. With a prefix the mask is not cached.
    parser.parser.compute_bias(&nothing, b" ");
    parser.compute_ff_tokens();
    match parser.parser.get_error() {
        Some(error) => Err(StructureError::Refused(sentence(&error.message()))),
        None => Ok(()),
    }
}

/// An empty mask, for which nothing is computed.
struct EmptyMask(TokEnv);

impl BiasComputer for EmptyMask {
    fn compute_bias(&self, _: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        self.0.tok_trie().alloc_token_set()
    }

    fn trie(&self) -> &TokTrie {
        self.0.tok_trie()
    }
}

/// Runs a function on a thread with a large stack. `None` if it panics, or if no thread can be
/// started.
fn on_a_stack<T: Send>(run: impl FnOnce() -> T + Send) -> Option<T> {
    let caught = || llguidance::panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(run()))).ok();
    std::thread::scope(|scope| {
        let thread = Builder::new().stack_size(STACK).spawn_scoped(scope, caught).ok()?;
        thread.join().ok().flatten()
    })
}

impl TokenizerEnv for TokenTrie {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// The tokens that the model was trained on for these bytes, if they spell them exactly.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        if let Ok(text) = str::from_utf8(bytes)
            && let Ok(ids) = self.tokenizer.encode(text, false)
            && self.is_exact(&ids, bytes)
        {
            return ids;
        }
        self.trie.greedy_tokenize(bytes)
    }
}

impl TokenTrie {
    /// True if the tokens of the trie make exactly these bytes.
    fn is_exact(&self, ids: &[u32], bytes: &[u8]) -> bool {
        let mut rest = bytes;
        for &id in ids {
            let token: &[u8] =
                if (id as usize) < self.trie.vocab_size() { self.trie.token(id) } else { &[] };
            match rest.strip_prefix(token) {
                Some(after) if !token.is_empty() => rest = after,
                _ => return false,
            }
        }
        rest.is_empty()
    }
}

impl fmt::Debug for GrammarVocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("ends", &self.ends).finish_non_exhaustive()
    }
}
