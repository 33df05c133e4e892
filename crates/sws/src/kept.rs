//! Beginnings of texts that were computed, and are kept while they are worth their bytes.

use sws_model::Prefix;
use sws_model::text::{Generation, Position};

/// Maximum number of beginnings.
const MOST: usize = 256;

/// Times that a text which is hardly ever continued will be, as a share of those of another.
const PASSING: f64 = 0.125;

/// Beginnings of texts, at most [`MOST`].
#[derive(Debug)]
pub(crate) struct Shelf<P = Prefix> {
    kept: Vec<Kept<P>>,
    /// Worth of the last one that was dropped: what is not used for long is worth no more than that.
    age: f64,
    /// Seconds that a byte of memory would have saved so far, with experts in it.
    rent: f64,
}

/// The beginning of a text.
#[derive(Debug)]
pub(crate) struct Kept<P = Prefix> {
    pub(crate) prefix: P,
    /// The tokens in it.
    pub(crate) tokens: Vec<u32>,
    pub(crate) owner: u64,
    /// True if it is hardly ever continued.
    pub(crate) passing: bool,
    /// The number of the running text whose last state this is.
    pub(crate) trail: Option<usize>,
    /// What the text had come to, if it is over.
    pub(crate) answer: Option<Answer>,
    /// True if it is on disk, or cannot be, and was not used since.
    pub(crate) is_stored: bool,
    /// Bytes of the prefix, with memory that others share.
    bytes: u64,
    uses: u32,
    worth: f64,
    /// Rent at the time of its last use.
    paid: f64,
}

/// The tokens chosen for a text, of which the prefix holds all but the last.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) asked: Asked,
    pub(crate) made: Vec<u32>,
}

/// Whatever decides about the tokens of a text beside its prompt. The same again chooses the same.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    generation: Generation,
    position: Position,
    bias: Vec<(u32, f32)>,
}

impl Asked {
    pub(crate) fn new(generation: &Generation, position: Position, bias: &[(u32, f32)]) -> Asked {
        let mut generation = generation.clone();
        if generation.sampling.temperature == 0.0 {
            // Nothing is drawn.
            generation.sampling.seed = 0;
        }
        Asked { generation, position, bias: bias.to_vec() }
    }
}

/// Number of the first tokens that two texts have in common.
pub(crate) fn common(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

impl<P> Kept<P> {
    pub(crate) fn new(prefix: P, tokens: Vec<u32>, owner: u64) -> Kept<P> {
        let (passing, trail, answer, is_stored) = (false, None, None, false);
        let (bytes, uses, worth, paid) = (0, 0, 0.0, 0.0);
        Kept { prefix, tokens, owner, passing, trail, answer, is_stored, bytes, uses, worth, paid }
    }

    /// Sets the bytes of the prefix.
    pub(crate) fn sized(self, bytes: u64) -> Kept<P> {
        Kept { bytes, ..self }
    }

    /// Tokens that it has saved, and may save once more, for each of its bytes.
    fn saves(&self) -> f64 {
        let once_more = if self.passing && self.uses == 0 { PASSING } else { 1.0 };
        let times = f64::from(self.uses) + once_more;
        self.tokens.len() as f64 * times / self.bytes.max(1) as f64
    }
}

impl<P> Shelf<P> {
    pub(crate) fn new() -> Shelf<P> {
        Shelf { kept: Vec::new(), age: 0.0, rent: 0.0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(crate) fn prefixes(&self) -> impl Iterator<Item = &P> {
        self.kept.iter().map(|kept| &kept.prefix)
    }

    /// Bytes of all prefixes; memory that several share counts for each.
    pub(crate) fn bytes(&self) -> u64 {
        self.kept.iter().map(|kept| kept.bytes).sum()
    }

    /// Bytes of all tokens.
    pub(crate) fn token_bytes(&self) -> u64 {
        let tokens = |kept: &Kept<P>| {
            kept.tokens.len() + kept.answer.as_ref().map_or(0, |answer| answer.made.len())
        };
        (self.kept.iter().map(tokens).sum::<usize>() * size_of::<u32>()) as u64
    }

    pub(crate) fn get(&self, at: usize) -> &Kept<P> {
        &self.kept[at]
    }

    /// Takes one away.
    pub(crate) fn take(&mut self, at: usize) -> Kept<P> {
        self.kept.remove(at)
    }

    /// The place of the one that has most of an owner's prompt, and the number of tokens. One that
    /// cannot go back has to be a beginning of the prompt as a whole.
    pub(crate) fn best(
        &self,
        prompt: &[u32],
        owner: u64,
        goes_back: bool,
    ) -> Option<(usize, usize)> {
        let of_owner = self.kept.iter().enumerate().filter(|(_, kept)| kept.owner == owner);
        let known = of_owner.map(|(at, kept)| (at, common(prompt, &kept.tokens), kept));
        known
            .filter(|(_, len, kept)| *len > 0 && (goes_back || *len == kept.tokens.len()))
            .map(|(at, len, _)| (at, len))
            .max_by_key(|&(_, len)| len)
    }

    /// The largest number of tokens that an owner's prompt has in common with any.
    pub(crate) fn most_common(&self, prompt: &[u32], owner: u64) -> usize {
        let of_owner = self.kept.iter().filter(|kept| kept.owner == owner);
        of_owner.map(|kept| common(prompt, &kept.tokens)).max().unwrap_or(0)
    }

    /// The place of a text that was the same as this one.
    pub(crate) fn again(&self, prompt: &[u32], owner: u64, asked: &Asked) -> Option<usize> {
        self.kept.iter().position(|kept| {
            kept.answer.as_ref().is_some_and(|Answer { asked: before, made }| {
                kept.owner == owner
                    && kept.tokens.len() + 1 == prompt.len() + made.len()
                    && kept.tokens.starts_with(prompt)
                    && before == asked
            })
        })
    }

    /// Leaves the last state of a text, which is over.
    pub(crate) fn settle(&mut self, number: usize) {
        let of_text = self.kept.iter_mut().filter(|kept| kept.trail == Some(number));
        of_text.for_each(|kept| kept.trail = None);
    }

    /// Adds a beginning in place of those that it makes useless, and of the last state of its text, unless
    /// that was used.
    pub(crate) fn add(&mut self, mut kept: Kept<P>, goes_back: bool) {
        if kept.tokens.is_empty() {
            return;
        }
        let same = |a: &Kept<P>, b: &Kept<P>| {
            a.owner == b.owner && (goes_back || a.tokens.len() == b.tokens.len())
        };
        let useless = |less: &Kept<P>, more: &Kept<P>| {
            same(less, more) && more.tokens.starts_with(&less.tokens)
        };
        if kept.answer.is_none() && self.kept.iter().any(|other| useless(&kept, other)) {
            return;
        }
        self.kept.retain(|other| {
            let goes = useless(other, &kept);
            if goes {
                kept.uses = kept.uses.max(other.uses);
                kept.is_stored |= other.is_stored && other.tokens.len() == kept.tokens.len();
            }
            let is_before = kept.trail.is_some() && other.trail == kept.trail && other.uses == 0;
            !goes && !is_before
        });
        if self.kept.len() >= MOST {
            self.drop_one();
        }
        (kept.worth, kept.paid) = (self.age + kept.saves(), self.rent);
        self.kept.push(kept);
    }

    /// Counts a use.
    pub(crate) fn hit(&mut self, at: usize) {
        let kept = &mut self.kept[at];
        kept.uses = kept.uses.saturating_add(1);
        // On disk it should stay as long, too.
        kept.is_stored = false;
        (kept.worth, kept.paid) = (self.age + kept.saves(), self.rent);
    }

    /// Raises the rent of a byte by so many seconds.
    pub(crate) fn charge(&mut self, seconds: f64) {
        self.rent += seconds;
    }

    /// Drops those that were not used while the rent of their bytes rose by what it takes to compute them
    /// again, at so many seconds for a token. Whether they are used once more or not, that costs at most
    /// twice what it costs to know. With `disk`, those that are not stored yet stay. Returns true if there
    /// were any.
    pub(crate) fn drop_unpaid(&mut self, token: f64, disk: bool) -> bool {
        let (rent, before) = (self.rent, self.kept.len());
        self.kept.retain(|kept| {
            let unpaid = (rent - kept.paid) * kept.bytes as f64;
            unpaid <= kept.tokens.len() as f64 * token || disk && !kept.is_stored
        });
        self.kept.len() < before
    }

    /// Drops the one that is worth least. Returns false if there is none.
    pub(crate) fn drop_one(&mut self) -> bool {
        let worth = |at: &usize| self.kept[*at].worth;
        let least = (0..self.kept.len()).min_by(|a, b| worth(a).total_cmp(&worth(b)));
        let Some(at) = least else { return false };
        self.age = self.kept.remove(at).worth;
        true
    }

    /// The first that is not on disk.
    pub(crate) fn unstored(&mut self) -> Option<&mut Kept<P>> {
        self.kept.iter_mut().find(|kept| !kept.is_stored)
    }
}

#[cfg(test)]
mod tests {
    use sws_model::text::Sampling;

    use super::*;

    fn kept(tokens: &[u32], owner: u64, bytes: u64) -> Kept<()> {
        Kept::new((), tokens.to_vec(), owner).sized(bytes)
    }

    #[test]
    fn prompts_begin_with_what_has_most_of_them() {
        let mut shelf = Shelf::new();
        for tokens in [&[1, 2, 3, 4][..], &[1, 2, 9], &[5; 40]] {
            shelf.add(kept(tokens, 7, 100), true);
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
            assert_eq!(shelf.best(prompt, owner, true), back, "{prompt:?} of {owner}");
            assert_eq!(shelf.best(prompt, owner, false), on, "{prompt:?} of {owner}");
        }
        assert_eq!(shelf.most_common(&[1, 2, 3, 8], 7), 3);
        assert_eq!(shelf.most_common(&[1, 2, 3, 8], 8), 0);
    }

    #[test]
    fn a_longer_one_takes_the_place_of_its_beginnings() {
        for (goes_back, expected) in [(true, 2), (false, 3)] {
            let mut shelf = Shelf::new();
            shelf.add(kept(&[1, 2], 7, 100), goes_back);
            shelf.add(kept(&[1, 2], 8, 100), goes_back);
            shelf.add(kept(&[1, 2, 3], 7, 100), goes_back);
            shelf.add(kept(&[1, 2], 7, 100), goes_back);
            assert_eq!(shelf.len(), expected, "{goes_back}");
        }
    }

    #[test]
    fn what_saves_least_for_its_bytes_goes_first_and_old_uses_fade() {
        let mut shelf = Shelf::new();
        shelf.add(kept(&[1; 10], 7, 100), true);
        shelf.add(kept(&[2; 10], 7, 1000), true);
        shelf.add(kept(&[3; 100], 7, 100), true);
        shelf.hit(0);
        assert!(shelf.drop_one());
        let has = |shelf: &Shelf<()>, token| shelf.most_common(&[token], 7) > 0;
        assert!(has(&shelf, 1) && !has(&shelf, 2) && has(&shelf, 3));
        // Used much once, and then outlived by many others.
        for _ in 0..5 {
            shelf.hit(0);
        }
        for token in 10..1000 {
            shelf.add(kept(&[token; 10], 7, 100), true);
            shelf.drop_one();
        }
        assert!(!has(&shelf, 1));
        let mut shelf = Shelf::new();
        for token in 0..2 * MOST as u32 {
            shelf.add(kept(&[token], 7, 1), true);
        }
        assert_eq!(shelf.len(), MOST);
        assert!(!Shelf::<()>::new().drop_one());
    }

    #[test]
    fn what_costs_more_than_computing_it_again_goes() {
        let mut shelf = Shelf::new();
        shelf.add(kept(&[1; 100], 7, 1000), true);
        shelf.add(kept(&[2; 100], 7, 4000), true);
        shelf.add(kept(&[3; 100], 7, 4000), true);
        // Computing each takes a second.
        shelf.charge(0.000_2);
        assert!(!shelf.drop_unpaid(0.01, false));
        shelf.hit(2);
        shelf.charge(0.000_1);
        assert!(shelf.drop_unpaid(0.01, false));
        let left = |shelf: &Shelf<()>| -> Vec<u32> {
            shelf.kept.iter().map(|kept| kept.tokens[0]).collect()
        };
        assert_eq!(left(&shelf), [1, 3]);
        shelf.add(kept(&[4; 100], 7, 4000), true);
        shelf.charge(0.000_2);
        // What is not stored yet would be lost for the next start.
        assert!(!shelf.drop_unpaid(0.01, true));
        assert!(shelf.drop_unpaid(0.01, false));
        assert_eq!(left(&shelf), [1, 4], "the rent of a new one begins when it comes");
    }

    #[test]
    fn a_text_leaves_its_last_state_and_those_that_were_used() {
        let mut shelf = Shelf::new();
        for len in 1..6 {
            let mut state = kept(&[1; 6][..len], 7, 100);
            state.trail = Some(3);
            shelf.add(state, false);
            if len == 2 {
                shelf.hit(0);
            }
        }
        let has = |shelf: &Shelf<()>| {
            (1..6).filter(|&len| shelf.kept.iter().any(|kept| kept.tokens.len() == len)).collect()
        };
        let left: Vec<usize> = has(&shelf);
        assert_eq!(left, [2, 5]);
        shelf.settle(3);
        let mut state = kept(&[2; 4], 7, 100);
        state.trail = Some(3);
        shelf.add(state, false);
        assert_eq!(shelf.len(), 3, "another text of that number");
    }

    #[test]
    fn calls_beside_a_conversation_leave_it() {
        // Room for two; after each turn of the conversation a title, tags and questions are asked for.
        let mut shelf = Shelf::new();
        for turn in 1..20_u32 {
            let conversation = vec![1; 100 * turn as usize];
            if turn > 1 {
                let (at, len) = shelf.best(&conversation, 7, true).expect("the turn before");
                assert_eq!(len, 100 * (turn as usize - 1), "turn {turn}");
                shelf.hit(at);
            }
            shelf.add(kept(&conversation, 7, 100 * u64::from(turn)), true);
            for call in 0..3 {
                let mut side =
                    kept(&vec![10 * turn + call; 100 * turn as usize], 7, 100 * u64::from(turn));
                side.passing = true;
                while shelf.len() > 1 {
                    shelf.drop_one();
                }
                shelf.add(side, true);
            }
        }
    }

    #[test]
    fn only_the_same_text_again_goes_on_where_it_was() {
        let options = |temperature, seed| {
            let sampling = Sampling { temperature, seed, ..Sampling::default() };
            Generation { sampling, stop_tokens: vec![2], ..Generation::default() }
        };
        let asked =
            |temperature, seed| Asked::new(&options(temperature, seed), Position::Start, &[]);
        let again = |before: &Asked, prompt: &[u32], owner, asked: &Asked| {
            let mut shelf = Shelf::new();
            let mut kept = kept(&[1, 2, 3, 7, 8], 5, 100);
            kept.answer = Some(Answer { asked: before.clone(), made: vec![7, 8, 9] });
            shelf.add(kept, true);
            shelf.again(prompt, owner, asked).is_some()
        };
        let drawn = asked(0.8, 3);
        assert!(again(&drawn, &[1, 2, 3], 5, &drawn));
        let biased = Asked::new(&options(0.8, 3), Position::Start, &[(1, 0.5)]);
        let middle = Asked::new(&options(0.8, 3), Position::Middle, &[]);
        for other in [asked(0.8, 4), asked(0.7, 3), biased, middle] {
            assert!(!again(&drawn, &[1, 2, 3], 5, &other), "{other:?}");
        }
        for (prompt, owner) in
            [(&[1, 2][..], 5), (&[1, 2, 3, 7], 5), (&[1, 2, 4], 5), (&[1, 2, 3], 6)]
        {
            assert!(!again(&drawn, prompt, owner, &drawn), "{prompt:?} of {owner}");
        }
        // Without a temperature the seed decides nothing.
        assert!(again(&asked(0.0, 3), &[1, 2, 3], 5, &asked(0.0, 4)));
    }
}
