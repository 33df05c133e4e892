//! Search for the patterns of a `tokenizer.json`, in bounded time.

use std::cell::RefCell;

use fancy_regex::{Expr, Regex, RegexBuilder};
use tokenizers::Offsets;
use tokenizers::pattern::Pattern;

use super::published::PUBLISHED;
use super::room::EncodingRoom;
use super::{TokenizerError, start};

/// Maximum length of a pattern that is not on the list.
const MAX_BYTES: usize = 2048;
/// Maximum size of each automaton of a pattern that is not on the list.
const MAX_AUTOMATON: usize = 512 << 10;
/// Longer texts allow fewer backtracks, because each may scan the whole text.
const SHORT: usize = 32 << 10;
/// Maximum number of bytes that one attempt at a match may scan.
const WORK: usize = 1 << 30;
/// Number of backtracks always allowed in one attempt at a match. Patterns that split words
/// backtrack once for each alternative, and for each blank of a run.
const LEAST_BACKTRACKS: usize = 1000;
/// Maximum product of nested counted repetitions; published patterns count to 3.
const MOST_TIMES: usize = 1024;
/// Maximum number of lookarounds in a pattern.
const MAX_LOOKAROUNDS: usize = 4;
/// A pattern to search for.
#[derive(Debug)]
pub(super) enum Find {
    /// Literal text.
    Text(String),
    /// A pattern that a published tokenizer uses; its search time is proportional to the text.
    Published(Regex),
    /// Another pattern. It is tried at one position after another, so that it can be stopped in
    /// between.
    Other(Regex),
}

impl Find {
    /// A literal pattern, or the reason why it is not supported.
    pub(super) fn text(text: &str) -> Result<Find, String> {
        match text {
            "" => Err("an empty pattern".to_owned()),
            text => Ok(Find::Text(text.to_owned())),
        }
    }

    /// A regular expression, or the reason why it is not supported.
    pub(super) fn regex(pattern: &str) -> Result<Find, String> {
        if Find::is_published(pattern) {
            let regex = Regex::new(pattern).map_err(refused(pattern))?;
            return Ok(Find::Published(regex));
        }
        match pattern.len() {
            0 => return Err("an empty pattern".to_owned()),
            1..=MAX_BYTES => {}
            len => return Err(refused(pattern)(format!("{len} bytes"))),
        }
        if pattern.contains("\\G") {
            return Err(refused(pattern)("with `\\G`"));
        }
        let tree = Expr::parse_tree(pattern).map_err(refused(pattern))?;
        check(&tree.expr).map_err(refused(pattern))?;
        // The pattern is first compiled on its own, as an extra closing bracket would end the
        // group.
        build(pattern, SHORT).map_err(refused(pattern))?;
        let regex = build(&anchored(pattern), SHORT).map_err(refused(pattern))?;
        Ok(Find::Other(regex))
    }

    /// True for a pattern on the list.
    pub(super) fn is_published(pattern: &str) -> bool {
        PUBLISHED.contains(&pattern)
    }

    /// Splits a text into matches and the parts between them, in order.
    pub(super) fn find(
        &self,
        text: &str,
        room: &EncodingRoom,
    ) -> Result<PatternMatches, TokenizerError> {
        let mut found = FoundParts::default();
        match self {
            Find::Text(part) => {
                for (start, part) in text.match_indices(part) {
                    found.add(start, start + part.len(), room)?;
                }
            }
            Find::Published(regex) => {
                for match_ in regex.find_iter(text) {
                    let Ok(match_) = match_ else { return Err(too_long(regex)) };
                    found.add(match_.start(), match_.end(), room)?;
                }
            }
            Find::Other(regex) => {
                let slower = match text.len() {
                    ..=SHORT => None,
                    len => Some(build(regex.as_str(), len).map_err(|_| too_long(regex))?),
                };
                let regex = slower.as_ref().unwrap_or(regex);
                let mut tried = AnchoredMatches { regex, text, at: 0, last: None };
                while let Some((start, stop)) = tried.next(room)? {
                    found.add(start, stop, room)?;
                }
            }
        }
        let FoundParts { mut parts, matches, matched, end } = found;
        if end < text.len() {
            parts.push(((end, text.len()), false));
        }
        Ok(PatternMatches { parts: RefCell::new(parts), matches, matched })
    }
}

/// Compiles a pattern for texts of `bytes` bytes.
fn build(pattern: &str, bytes: usize) -> fancy_regex::Result<Regex> {
    let backtracks = (WORK / bytes.max(1)).max(LEAST_BACKTRACKS);
    let mut builder = RegexBuilder::new(pattern);
    builder.backtrack_limit(backtracks).delegate_size_limit(MAX_AUTOMATON).build()
}

/// Checks that between two backtracks an attempt scans the text at most once, plus once per
/// lookaround. This holds as long as no repetition contains a lookaround. Returns the unsupported
/// feature on failure.
fn check(pattern: &Expr) -> Result<(), &'static str> {
    let mut looks = 0;
    check_part(pattern, false, 1, &mut looks)?;
    if looks > MAX_LOOKAROUNDS {
        return Err("with more than 4 lookarounds");
    }
    Ok(())
}

/// `times` is the product of the counted repetitions around this part.
fn check_part(
    part: &Expr,
    repeated: bool,
    times: usize,
    looks: &mut usize,
) -> Result<(), &'static str> {
    match part {
        Expr::Empty | Expr::Any { .. } | Expr::Assertion(_) => Ok(()),
        Expr::Literal { .. } | Expr::Delegate { .. } => Ok(()),
        Expr::Concat(all) | Expr::Alt(all) => {
            for one in all {
                check_part(one, repeated, times, looks)?;
            }
            Ok(())
        }
        Expr::Group(inner) => check_part(inner, repeated, times, looks),
        Expr::Repeat { child, lo, hi, .. } => {
            let counted = if *hi == usize::MAX { *lo } else { *hi };
            let times = times.saturating_mul(counted.max(1));
            if times > MOST_TIMES {
                return Err("with a repetition of more than 1,024 times");
            }
            check_part(child, repeated || *hi > 1, times, looks)
        }
        Expr::LookAround(inner, _) if !repeated => {
            *looks += 1;
            check_part(inner, false, times, looks)
        }
        Expr::AtomicGroup(inner) if !repeated => check_part(inner, false, times, looks),
        Expr::Backref { .. } | Expr::KeepOut if !repeated => Ok(()),
        _ if repeated => Err("with a repetition of more than letters, classes and groups"),
        _ => Err("with a condition or a call"),
    }
}

/// The pattern, matched only at the position where a search begins.
fn anchored(pattern: &str) -> String {
    format!("\\G(?:{pattern})")
}

/// The successive matches of an [`anchored`] pattern.
struct AnchoredMatches<'a> {
    regex: &'a Regex,
    text: &'a str,
    at: usize,
    /// End of the last match.
    last: Option<usize>,
}

impl AnchoredMatches<'_> {
    fn next(&mut self, room: &EncodingRoom) -> Result<Option<(usize, usize)>, TokenizerError> {
        while self.at <= self.text.len() {
            if !room.has_time() {
                return Err(too_long(self.regex));
            }
            let Ok(tried) = self.regex.find_from_pos(self.text, self.at) else {
                return Err(too_long(self.regex));
            };
            let letter = self.text[self.at..].chars().next().map_or(1, char::len_utf8);
            self.at += letter;
            let Some(match_) = tried else { continue };
            let start = match_.start();
            let end = match_.end();
            if start < end {
                self.at = end;
            } else if self.last == Some(end) {
                // An empty match directly after another does not count.
                continue;
            } else {
                self.at = end + self.text[end..].chars().next().map_or(1, char::len_utf8);
            }
            self.last = Some(end);
            return Ok(Some((start, end)));
        }
        Ok(None)
    }
}

/// The result of a search, as a pattern for the `tokenizers` crate.
#[derive(Debug)]
pub(super) struct PatternMatches {
    parts: RefCell<Vec<(Offsets, bool)>>,
    pub(super) matches: usize,
    /// Bytes of all matches.
    pub(super) matched: usize,
}

impl PatternMatches {
    /// Swaps the matches and the parts between them.
    pub(super) fn inverted(mut self) -> PatternMatches {
        for (_, matched) in self.parts.get_mut() {
            *matched = !*matched;
        }
        self
    }

    pub(super) fn parts(&self) -> usize {
        self.parts.borrow().len()
    }
}

impl Pattern for PatternMatches {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        match inside {
            "" => Ok(vec![((0, 0), false)]),
            _ => Ok(self.parts.take()),
        }
    }
}

/// Parts of a text up to the last match, each with true for a match.
#[derive(Default)]
struct FoundParts {
    parts: Vec<(Offsets, bool)>,
    matches: usize,
    /// Bytes of the matches.
    matched: usize,
    /// End of the last match.
    end: usize,
}

impl FoundParts {
    fn add(
        &mut self,
        start: usize,
        stop: usize,
        room: &EncodingRoom,
    ) -> Result<(), TokenizerError> {
        if self.end < start {
            self.parts.push(((self.end, start), false));
        }
        self.parts.push(((start, stop), true));
        self.matches += 1;
        self.matched += stop - start;
        self.end = stop;
        room.found(self.parts.len())
    }
}

/// The message about a pattern for a reason, for `map_err`.
fn refused<E: ToString>(pattern: &str) -> impl Fn(E) -> String {
    move |why| {
        let why = why.to_string();
        format!("the pattern `{}` ({})", short(pattern), why.lines().next().unwrap_or_default())
    }
}

fn too_long(regex: &Regex) -> TokenizerError {
    let pattern = regex.as_str();
    let own = pattern.strip_prefix("\\G(?:").and_then(|rest| rest.strip_suffix(')'));
    TokenizerError::Pattern(short(own.unwrap_or(pattern)))
}

/// The start of a pattern, for an error message.
fn short(pattern: &str) -> String {
    start(pattern, 60)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Patterns that are not on the list: with empty matches, lookarounds and backreferences.
    const OTHERS: [&str; 12] = [
        "a*",
        "b|",
        "(?=a)|c",
        "(a|b)\\1",
        "(?<=a)b|c+",
        "(?<!a)b",
        "\\b",
        "^a|b$",
        "\\d{1,3}(?=(?:\\d{3})*\\b)",
        "(?i:A)+(?!b)",
        "\\s+(?!\\S)|(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+",
        "a\\Kb",
    ];

    #[test]
    fn published_patterns_are_distinguished_from_others() {
        for pattern in PUBLISHED {
            assert!(matches!(Find::regex(pattern), Ok(Find::Published(_))), "{pattern}");
        }
        for pattern in OTHERS {
            assert!(matches!(Find::regex(pattern), Ok(Find::Other(_))), "{pattern}");
        }
    }

    #[test]
    fn patterns_without_a_bound_are_refused() {
        let long = "a".repeat(MAX_BYTES + 1);
        for pattern in ["", "(", "a)|(?:b", "\\Ga", "\\p{L}{1000}", &long] {
            assert!(Find::regex(pattern).is_err(), "{pattern:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn matching_at_each_position_equals_searching_the_whole_text(
            text in "([ab c\n1é]|\\PC|'s| the|  |12345|你好){0,30}",
        ) {
            // With time for a far longer text, so that other work beside the test ends none.
            let room = EncodingRoom::new(1 << 24, usize::MAX);
            for pattern in PUBLISHED.iter().chain(&OTHERS) {
                let span = |m: fancy_regex::Match<'_>| (m.start(), m.end());
                let whole = Regex::new(pattern).unwrap();
                let found: Vec<_> = whole.find_iter(&text).map(|m| span(m.unwrap())).collect();
                let regex = Regex::new(&anchored(pattern)).unwrap();
                let mut tried = AnchoredMatches { regex: &regex, text: &text, at: 0, last: None };
                let tried: Vec<_> = std::iter::from_fn(|| tried.next(&room).unwrap()).collect();
                prop_assert_eq!(tried, found, "{}", pattern);
            }
        }
    }
}
