//! Sequences without a text, with what they hold from the text before.

use sws_model::text::{Generation, Position};

/// Sequences without a text, the one that had one last at the end.
#[derive(Debug)]
pub(crate) struct FreeList(Vec<Free>);

/// A sequence without a text.
#[derive(Debug)]
pub(crate) struct Free {
    pub(crate) sequence: usize,
    /// Tokens in it, from the text before.
    pub(crate) tokens: Vec<u32>,
    /// Owner of that text.
    pub(crate) owner: u64,
    /// What that text had come to.
    pub(crate) answer: Option<Answer>,
}

/// The tokens chosen for a text, of which the sequence holds all but the last.
#[derive(Debug)]
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

impl Free {
    /// Number of the first tokens of an owner's prompt that it holds.
    fn known(&self, prompt: &[u32], owner: u64) -> usize {
        if self.owner != owner {
            return 0;
        }
        prompt.iter().zip(&self.tokens).take_while(|(a, b)| a == b).count()
    }
}

impl FreeList {
    /// Empty sequences.
    pub(crate) fn new(sequences: Vec<usize>) -> FreeList {
        let empty = |sequence| Free { sequence, tokens: Vec::new(), owner: 0, answer: None };
        FreeList(sequences.into_iter().map(empty).collect())
    }

    /// True if there is a sequence, or this one.
    pub(crate) fn has(&self, sequence: Option<usize>) -> bool {
        match sequence {
            Some(sequence) => self.0.iter().any(|free| free.sequence == sequence),
            None => !self.0.is_empty(),
        }
    }

    /// Takes this sequence.
    pub(crate) fn take(&mut self, sequence: usize) -> Option<usize> {
        let at = self.0.iter().position(|free| free.sequence == sequence)?;
        Some(self.0.remove(at).sequence)
    }

    /// Takes a sequence whose text was the same as this one, with the tokens that it had come to.
    pub(crate) fn take_again(
        &mut self,
        prompt: &[u32],
        owner: u64,
        asked: &Asked,
    ) -> Option<(usize, Vec<u32>)> {
        let at = self.0.iter().position(|free| {
            free.answer.as_ref().is_some_and(|Answer { asked: before, made }| {
                free.owner == owner
                    && free.tokens.len() + 1 == prompt.len() + made.len()
                    && free.tokens.starts_with(prompt)
                    && before == asked
            })
        })?;
        let Free { sequence, answer, .. } = self.0.remove(at);
        Some((sequence, answer?.made))
    }

    /// Takes the best sequence for an owner's prompt, and returns it with the number of tokens of the
    /// prompt that it holds: the one that holds most, if that is most of the sequence too; otherwise
    /// an empty one, or the one whose text ended first.
    pub(crate) fn take_best(&mut self, prompt: &[u32], owner: u64) -> Option<(usize, usize)> {
        let known = |free: &Free| free.known(prompt, owner);
        let most = (0..self.0.len()).max_by_key(|&at| known(&self.0[at]));
        let most = most.filter(|&at| {
            let free = &self.0[at];
            !free.tokens.is_empty() && 2 * known(free) >= free.tokens.len()
        });
        let empty = || self.0.iter().position(|free| free.tokens.is_empty());
        let at = most.or_else(empty).unwrap_or(0);
        let known = known(self.0.get(at)?);
        Some((self.0.remove(at).sequence, known))
    }

    /// Adds a sequence whose text is over.
    pub(crate) fn add(&mut self, free: Free) {
        self.0.push(free);
    }

    /// All sequences.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|free| free.sequence)
    }
}

#[cfg(test)]
mod tests {
    use sws_model::text::Sampling;

    use super::*;

    #[test]
    fn prompts_go_where_most_of_them_is_known() {
        let list = || {
            let mut list = FreeList::new(vec![0]);
            for (sequence, tokens) in [(1, vec![1, 2, 3, 4]), (2, vec![1, 2, 9]), (3, vec![5; 40])]
            {
                list.add(Free { sequence, tokens, owner: 7, answer: None });
            }
            list
        };
        let cases = [
            // The rest of a conversation, and another that begins like it.
            (vec![1, 2, 3, 4, 5, 6], 7, (1, 4)),
            (vec![1, 2, 9, 9], 7, (2, 3)),
            (vec![1, 2, 3], 7, (1, 3)),
            // A few tokens are no reason to give up many.
            (vec![5, 5, 6], 7, (0, 0)),
            (vec![8, 8], 7, (0, 0)),
            (vec![1, 2, 3, 4, 5], 8, (0, 0)),
        ];
        for (prompt, owner, expected) in cases {
            assert_eq!(list().take_best(&prompt, owner), Some(expected), "{prompt:?} of {owner}");
        }
        let mut list = list();
        assert_eq!(list.take(0), Some(0));
        assert!(!list.has(Some(0)) && list.has(None));
        // Without an empty one, the one whose text ended first.
        assert_eq!(list.take_best(&[8], 7), Some((1, 0)));
        assert_eq!(list.sequences().collect::<Vec<_>>(), [2, 3]);
        assert_eq!(FreeList::new(Vec::new()).take_best(&[1], 0), None);
    }

    #[test]
    fn only_the_same_text_again_goes_on_where_it_was() {
        let options = |temperature, seed| {
            let sampling = Sampling { temperature, seed, ..Sampling::default() };
            let (stop_tokens, stop_strings, shown_tokens) = (vec![2], vec![], vec![]);
            Generation { sampling, max_new_tokens: None, stop_tokens, stop_strings, shown_tokens }
        };
        let asked =
            |temperature, seed| Asked::new(&options(temperature, seed), Position::Start, &[]);
        let list = |asked: &Asked| {
            let mut list = FreeList::new(vec![0]);
            let answer = Some(Answer { asked: asked.clone(), made: vec![7, 8, 9] });
            list.add(Free { sequence: 1, tokens: vec![1, 2, 3, 7, 8], owner: 5, answer });
            list
        };
        let drawn = asked(0.8, 3);
        let again = |list: &mut FreeList, prompt: &[u32], owner, asked: &Asked| {
            list.take_again(prompt, owner, asked)
        };
        assert_eq!(again(&mut list(&drawn), &[1, 2, 3], 5, &drawn), Some((1, vec![7, 8, 9])));
        let biased = Asked::new(&options(0.8, 3), Position::Start, &[(1, 0.5)]);
        let middle = Asked::new(&options(0.8, 3), Position::Middle, &[]);
        for other in [asked(0.8, 4), asked(0.7, 3), biased, middle] {
            assert_eq!(again(&mut list(&drawn), &[1, 2, 3], 5, &other), None, "{other:?}");
        }
        for (prompt, owner) in
            [(&[1, 2][..], 5), (&[1, 2, 3, 7], 5), (&[1, 2, 4], 5), (&[1, 2, 3], 6)]
        {
            assert_eq!(
                again(&mut list(&drawn), prompt, owner, &drawn),
                None,
                "{prompt:?} of {owner}"
            );
        }
        // Without a temperature the seed decides nothing.
        let found = again(&mut list(&asked(0.0, 3)), &[1, 2, 3], 5, &asked(0.0, 4));
        assert_eq!(found, Some((1, vec![7, 8, 9])));
    }
}
