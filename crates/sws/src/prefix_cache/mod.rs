//! The prefix cache: computed prefixes of texts, kept in memory and on disk while they are worth
//! their bytes.

pub(crate) mod disk;

use sws_model::Prefix;
use sws_text::{Generation, Position};

/// Maximum number of prefixes.
const MOST: usize = 256;

/// Expected reuse of a short-lived text, as a share of that of any other text.
const SHORT_LIVED: f64 = 0.125;

/// The prefix cache, of at most [`MOST`].
#[derive(Debug)]
pub(crate) struct PrefixCache<P = Prefix> {
    entries: Vec<PrefixEntry<P>>,
    /// Worth of the last dropped prefix. It is added to the worth of new ones, so that unused
    /// prefixes age.
    age: f64,
    /// Seconds that one byte of memory would have saved so far, if it had held experts.
    rent: f64,
}

/// A kept prefix of a text, and its worth.
#[derive(Debug)]
pub(crate) struct PrefixEntry<P = Prefix> {
    pub(crate) prefix: P,
    /// The tokens of the prefix.
    pub(crate) tokens: Vec<u32>,
    pub(crate) owner: u64,
    /// True if the text is hardly ever continued.
    pub(crate) short_lived: bool,
    /// Number of the running text whose latest state this is.
    pub(crate) trail: Option<usize>,
    /// The generated tokens, if the text has ended.
    pub(crate) answer: Option<KnownAnswer>,
    /// True if the prefix is on disk or cannot be stored, and has not been used since.
    pub(crate) is_stored: bool,
    /// Bytes of the prefix, including memory shared with others.
    bytes: u64,
    uses: u32,
    worth: f64,
    /// Value of the rent at the last use.
    paid: f64,
}

/// Tokens generated for a text. The prefix holds all but the last of them.
#[derive(Clone, Debug)]
pub(crate) struct KnownAnswer {
    pub(crate) key: AnswerKey,
    pub(crate) made: Vec<u32>,
}

/// Everything that determines the generated tokens, except the prompt. An equal key and prompt give
/// the same tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AnswerKey {
    generation: Generation,
    position: Position,
    bias: Vec<(u32, f32)>,
}

impl AnswerKey {
    pub(crate) fn new(
        generation: &Generation,
        position: Position,
        bias: &[(u32, f32)],
    ) -> AnswerKey {
        let mut generation = generation.clone();
        if generation.sampling.temperature == 0.0 {
            // Without sampling the seed does not matter.
            generation.sampling.seed = 0;
        }
        AnswerKey { generation, position, bias: bias.to_vec() }
    }
}

/// Number of the first tokens that two texts have in common.
pub(crate) fn common(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

impl<P> PrefixEntry<P> {
    pub(crate) fn new(prefix: P, tokens: Vec<u32>, owner: u64) -> PrefixEntry<P> {
        let short_lived = false;
        let trail = None;
        let answer = None;
        let is_stored = false;
        let bytes = 0;
        let uses = 0;
        let worth = 0.0;
        let paid = 0.0;
        PrefixEntry {
            prefix,
            tokens,
            owner,
            short_lived,
            trail,
            answer,
            is_stored,
            bytes,
            uses,
            worth,
            paid,
        }
    }

    /// Sets the bytes of the prefix.
    pub(crate) fn sized(self, bytes: u64) -> PrefixEntry<P> {
        PrefixEntry { bytes, ..self }
    }

    /// Prompt tokens saved so far and expected to be saved once more, per byte.
    fn saves(&self) -> f64 {
        let once_more = if self.short_lived && self.uses == 0 { SHORT_LIVED } else { 1.0 };
        let times = f64::from(self.uses) + once_more;
        self.tokens.len() as f64 * times / self.bytes.max(1) as f64
    }

    /// True if this is the state of an identical earlier text.
    fn answers(&self, prompt: &[u32], owner: u64, key: &AnswerKey) -> bool {
        let Some(KnownAnswer { key: before, made }) = &self.answer else { return false };
        self.owner == owner
            && self.tokens.len() + 1 == prompt.len() + made.len()
            && self.tokens.starts_with(prompt)
            && before == key
    }

    /// True if another prefix makes this one useless.
    fn is_useless_beside(&self, other: &PrefixEntry<P>, goes_back: bool) -> bool {
        self.owner == other.owner
            && (goes_back || self.tokens.len() == other.tokens.len())
            && other.tokens.starts_with(&self.tokens)
    }
}

impl<P> PrefixCache<P> {
    pub(crate) fn new() -> PrefixCache<P> {
        PrefixCache { entries: Vec::new(), age: 0.0, rent: 0.0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn prefixes(&self) -> impl Iterator<Item = &P> {
        self.entries.iter().map(|entry| &entry.prefix)
    }

    /// Bytes of all prefixes. Shared memory counts once for each.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.bytes).sum()
    }

    /// Bytes of all token ids.
    pub(crate) fn token_bytes(&self) -> u64 {
        let mut tokens = 0;
        for entry in &self.entries {
            tokens += entry.tokens.len();
            if let Some(answer) = &entry.answer {
                tokens += answer.made.len();
            }
        }
        (tokens * size_of::<u32>()) as u64
    }

    pub(crate) fn get(&self, at: usize) -> &PrefixEntry<P> {
        &self.entries[at]
    }

    /// Removes and returns a prefix.
    pub(crate) fn take(&mut self, at: usize) -> PrefixEntry<P> {
        self.entries.remove(at)
    }

    /// The place of the owner's prefix that covers most of a prompt, and the number of tokens
    /// covered. A prefix that cannot be cut has to be contained in the prompt as a whole.
    pub(crate) fn best(
        &self,
        prompt: &[u32],
        owner: u64,
        goes_back: bool,
    ) -> Option<(usize, usize)> {
        let mut best: Option<(usize, usize)> = None;
        for (at, entry) in self.entries.iter().enumerate() {
            if entry.owner != owner {
                continue;
            }
            let len = common(prompt, &entry.tokens);
            let helps = len > 0 && (goes_back || len == entry.tokens.len());
            // Of equally long ones, the last.
            if helps && best.is_none_or(|(_, most)| len >= most) {
                best = Some((at, len));
            }
        }
        best
    }

    /// The largest number of first tokens that a prompt shares with any prefix of its owner.
    pub(crate) fn most_common(&self, prompt: &[u32], owner: u64) -> usize {
        let mut most = 0;
        for entry in &self.entries {
            if entry.owner == owner {
                most = most.max(common(prompt, &entry.tokens));
            }
        }
        most
    }

    /// The place of an identical earlier text.
    pub(crate) fn find_answer(&self, prompt: &[u32], owner: u64, key: &AnswerKey) -> Option<usize> {
        self.entries.iter().position(|entry| entry.answers(prompt, owner, key))
    }

    /// Keeps the latest state of a text that has ended, instead of replacing it later.
    pub(crate) fn end_trail(&mut self, number: usize) {
        for entry in &mut self.entries {
            if entry.trail == Some(number) {
                entry.trail = None;
            }
        }
    }

    /// Adds a prefix. It replaces prefixes that it makes useless, and the previous state of its
    /// text, unless that was used.
    pub(crate) fn add(&mut self, mut entry: PrefixEntry<P>, goes_back: bool) {
        if entry.tokens.is_empty() {
            return;
        }
        let mut others = self.entries.iter();
        if entry.answer.is_none() && others.any(|other| entry.is_useless_beside(other, goes_back)) {
            return;
        }
        self.entries.retain(|other| {
            let goes = other.is_useless_beside(&entry, goes_back);
            if goes {
                entry.uses = entry.uses.max(other.uses);
                entry.is_stored |= other.is_stored && other.tokens.len() == entry.tokens.len();
            }
            let is_before = entry.trail.is_some() && other.trail == entry.trail && other.uses == 0;
            !goes && !is_before
        });
        if self.entries.len() >= MOST {
            self.drop_one();
        }
        (entry.worth, entry.paid) = (self.age + entry.saves(), self.rent);
        self.entries.push(entry);
    }

    /// Counts a use.
    pub(crate) fn hit(&mut self, at: usize) {
        let entry = &mut self.entries[at];
        entry.uses = entry.uses.saturating_add(1);
        // On disk the prefix should live longer, too.
        entry.is_stored = false;
        (entry.worth, entry.paid) = (self.age + entry.saves(), self.rent);
    }

    /// Raises the rent of a byte by some seconds.
    pub(crate) fn charge(&mut self, seconds: f64) {
        self.rent += seconds;
    }

    /// Drops prefixes whose bytes have cost more rent since their last use than computing them
    /// again takes, at `token` seconds per token. At worst this costs twice as much as an optimal
    /// choice made with hindsight. With `disk`, prefixes that are not stored yet stay. Returns true
    /// if any were dropped.
    pub(crate) fn drop_unpaid(&mut self, token: f64, disk: bool) -> bool {
        let rent = self.rent;
        let before = self.entries.len();
        self.entries.retain(|entry| {
            let unpaid = (rent - entry.paid) * entry.bytes as f64;
            unpaid <= entry.tokens.len() as f64 * token || disk && !entry.is_stored
        });
        self.entries.len() < before
    }

    /// Drops the least valuable prefix. Returns false if there is none.
    pub(crate) fn drop_one(&mut self) -> bool {
        let places = 0..self.entries.len();
        let least = places.min_by(|&a, &b| self.entries[a].worth.total_cmp(&self.entries[b].worth));
        let Some(at) = least else { return false };
        self.age = self.entries.remove(at).worth;
        true
    }

    /// The first prefix that is not on disk.
    pub(crate) fn unstored(&mut self) -> Option<&mut PrefixEntry<P>> {
        self.entries.iter_mut().find(|entry| !entry.is_stored)
    }
}

#[cfg(test)]
mod tests {
    use sws_text::Sampling;

    use super::*;

    fn entry(tokens: &[u32], owner: u64, bytes: u64) -> PrefixEntry<()> {
        PrefixEntry::new((), tokens.to_vec(), owner).sized(bytes)
    }

    #[test]
    fn prompts_begin_with_what_has_most_of_them() {
        let mut cache = PrefixCache::new();
        for tokens in [&[1, 2, 3, 4][..], &[1, 2, 9], &[5; 40]] {
            cache.add(entry(tokens, 7, 100), true);
        }
        let cases = [
            (&[1, 2, 3, 4, 5, 6][..], 7, Some((0, 4)), Some((0, 4))),
            (&[1, 2, 9, 9], 7, Some((1, 3)), Some((1, 3))),
            // Only a part of one.
            (&[1, 2, 3], 7, Some((0, 3)), None),
            (&[5, 5, 6], 7, Some((2, 2)), None),
            (&[8, 8], 7, None, None),
            // Those of others are of no use.
            (&[1, 2, 3, 4, 5], 8, None, None),
        ];
        for (prompt, owner, back, on) in cases {
            assert_eq!(cache.best(prompt, owner, true), back, "{prompt:?} of {owner}");
            assert_eq!(cache.best(prompt, owner, false), on, "{prompt:?} of {owner}");
        }
        assert_eq!(cache.most_common(&[1, 2, 3, 8], 7), 3);
        assert_eq!(cache.most_common(&[1, 2, 3, 8], 8), 0);
    }

    #[test]
    fn a_longer_one_takes_the_place_of_its_prefixes() {
        for (goes_back, expected) in [(true, 2), (false, 3)] {
            let mut cache = PrefixCache::new();
            cache.add(entry(&[1, 2], 7, 100), goes_back);
            cache.add(entry(&[1, 2], 8, 100), goes_back);
            cache.add(entry(&[1, 2, 3], 7, 100), goes_back);
            cache.add(entry(&[1, 2], 7, 100), goes_back);
            assert_eq!(cache.len(), expected, "{goes_back}");
        }
    }

    #[test]
    fn what_saves_least_for_its_bytes_goes_first_and_old_uses_fade() {
        let mut cache = PrefixCache::new();
        cache.add(entry(&[1; 10], 7, 100), true);
        cache.add(entry(&[2; 10], 7, 1000), true);
        cache.add(entry(&[3; 100], 7, 100), true);
        cache.hit(0);
        assert!(cache.drop_one());
        let has = |cache: &PrefixCache<()>, token| cache.most_common(&[token], 7) > 0;
        assert!(has(&cache, 1) && !has(&cache, 2) && has(&cache, 3));
        // Used much once, and then outlived by many others.
        for _ in 0..5 {
            cache.hit(0);
        }
        for token in 10..1000 {
            cache.add(entry(&[token; 10], 7, 100), true);
            cache.drop_one();
        }
        assert!(!has(&cache, 1));
        let mut cache = PrefixCache::new();
        for token in 0..2 * MOST as u32 {
            cache.add(entry(&[token], 7, 1), true);
        }
        assert_eq!(cache.len(), MOST);
        assert!(!PrefixCache::<()>::new().drop_one());
    }

    #[test]
    fn what_costs_more_than_computing_it_again_goes() {
        let mut cache = PrefixCache::new();
        cache.add(entry(&[1; 100], 7, 1000), true);
        cache.add(entry(&[2; 100], 7, 4000), true);
        cache.add(entry(&[3; 100], 7, 4000), true);
        // Computing each takes a second.
        cache.charge(0.000_2);
        assert!(!cache.drop_unpaid(0.01, false));
        cache.hit(2);
        cache.charge(0.000_1);
        assert!(cache.drop_unpaid(0.01, false));
        let left = |cache: &PrefixCache<()>| -> Vec<u32> {
            cache.entries.iter().map(|entry| entry.tokens[0]).collect()
        };
        assert_eq!(left(&cache), [1, 3]);
        cache.add(entry(&[4; 100], 7, 4000), true);
        cache.charge(0.000_2);
        // What is not stored yet would be lost for the next start.
        assert!(!cache.drop_unpaid(0.01, true));
        assert!(cache.drop_unpaid(0.01, false));
        assert_eq!(left(&cache), [1, 4], "the rent of a new one begins when it comes");
    }

    #[test]
    fn a_text_leaves_its_last_state_and_those_that_were_used() {
        let mut cache = PrefixCache::new();
        for len in 1..6 {
            let mut state = entry(&[1; 6][..len], 7, 100);
            state.trail = Some(3);
            cache.add(state, false);
            if len == 2 {
                cache.hit(0);
            }
        }
        let has = |cache: &PrefixCache<()>| {
            (1..6)
                .filter(|&len| cache.entries.iter().any(|entry| entry.tokens.len() == len))
                .collect()
        };
        let left: Vec<usize> = has(&cache);
        assert_eq!(left, [2, 5]);
        cache.end_trail(3);
        let mut state = entry(&[2; 4], 7, 100);
        state.trail = Some(3);
        cache.add(state, false);
        assert_eq!(cache.len(), 3, "another text of that number");
    }

    #[test]
    fn calls_beside_a_conversation_leave_it() {
        // Room for two; after each turn of the conversation a title, tags and questions are asked for.
        let mut cache = PrefixCache::new();
        for turn in 1..20_u32 {
            let conversation = vec![1; 100 * turn as usize];
            if turn > 1 {
                let (at, len) = cache.best(&conversation, 7, true).expect("the turn before");
                assert_eq!(len, 100 * (turn as usize - 1), "turn {turn}");
                cache.hit(at);
            }
            cache.add(entry(&conversation, 7, 100 * u64::from(turn)), true);
            for call in 0..3 {
                let mut side =
                    entry(&vec![10 * turn + call; 100 * turn as usize], 7, 100 * u64::from(turn));
                side.short_lived = true;
                while cache.len() > 1 {
                    cache.drop_one();
                }
                cache.add(side, true);
            }
        }
    }

    #[test]
    fn only_the_same_text_again_goes_on_where_it_was() {
        let options = |temperature, seed| {
            let sampling = Sampling { temperature, seed, ..Sampling::default() };
            Generation { sampling, stop_tokens: vec![2], ..Generation::default() }
        };
        let key =
            |temperature, seed| AnswerKey::new(&options(temperature, seed), Position::Start, &[]);
        let again = |before: &AnswerKey, prompt: &[u32], owner, key: &AnswerKey| {
            let mut cache = PrefixCache::new();
            let mut entry = entry(&[1, 2, 3, 7, 8], 5, 100);
            entry.answer = Some(KnownAnswer { key: before.clone(), made: vec![7, 8, 9] });
            cache.add(entry, true);
            cache.find_answer(prompt, owner, key).is_some()
        };
        let drawn = key(0.8, 3);
        assert!(again(&drawn, &[1, 2, 3], 5, &drawn));
        let biased = AnswerKey::new(&options(0.8, 3), Position::Start, &[(1, 0.5)]);
        let middle = AnswerKey::new(&options(0.8, 3), Position::Middle, &[]);
        for other in [key(0.8, 4), key(0.7, 3), biased, middle] {
            assert!(!again(&drawn, &[1, 2, 3], 5, &other), "{other:?}");
        }
        for (prompt, owner) in
            [(&[1, 2][..], 5), (&[1, 2, 3, 7], 5), (&[1, 2, 4], 5), (&[1, 2, 3], 6)]
        {
            assert!(!again(&drawn, prompt, owner, &drawn), "{prompt:?} of {owner}");
        }
        // Without a temperature the seed decides nothing.
        assert!(again(&key(0.0, 3), &[1, 2, 3], 5, &key(0.0, 4)));
    }
}
