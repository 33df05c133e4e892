//! Router choices that were not reported to the policy and the draft yet.

use sws_format::Pass;

/// The choices of a pending pass, whose tokens may turn out wrong. They are held back until it is
/// known which tokens are right.
#[derive(Debug, Default)]
pub(super) struct PendingChoices {
    /// True if the next pass is a pending pass.
    expected: bool,
    /// The pending pass, until another pass begins.
    pass: Option<Pass>,
    choices: Choices,
}

/// For each layer, the experts of each token.
type Choices = Vec<(u32, Vec<u32>)>;

impl PendingChoices {
    /// Makes the next pass a pending pass.
    pub(super) fn expect(&mut self) {
        self.expected = true;
    }

    /// Begins a pass. True unless it is a pending pass.
    pub(super) fn begin(&mut self, pass: &Pass) -> bool {
        self.choices.clear();
        self.pass = if std::mem::take(&mut self.expected) { Some(pass.clone()) } else { None };
        self.pass.is_none()
    }

    /// True unless the last pass was a pending pass.
    pub(super) fn is_idle(&self) -> bool {
        self.pass.is_none()
    }

    /// Holds a choice back. False if the pass is not pending, and the choice can be reported at
    /// once.
    pub(super) fn hold(&mut self, layer: u32, experts: &[u32]) -> bool {
        if self.pass.is_some() {
            self.choices.push((layer, experts.to_vec()));
        }
        self.pass.is_some()
    }

    /// Ends the pending pass. Returns its first `tokens` tokens, each as a pass of its own with its
    /// experts by layer, as if it had been computed alone.
    pub(super) fn accept(&mut self, tokens: usize) -> Vec<(Pass, Choices)> {
        self.expected = false;
        let choices = std::mem::take(&mut self.choices);
        let Some(all) = &self.pass else { return Vec::new() };
        let rows = all.spans.iter().flat_map(|span| span.rows().zip(span.positions()));
        let sequence = all.spans.first().map_or(0, |span| span.sequence);
        let mut heard = Vec::new();
        if choices.is_empty() {
            return heard;
        }
        for (row, position) in rows.take(tokens) {
            let mut pass = Pass::default();
            pass.push(sequence, position, &all.tokens[row..=row]);
            let mut own = Choices::with_capacity(choices.len());
            for (layer, experts) in &choices {
                let each = experts.len() / all.len();
                own.push((*layer, experts[row * each..][..each].to_vec()));
            }
            heard.push((pass, own));
        }
        heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tokens_that_are_kept_are_heard_of() {
        let mut pending = PendingChoices::default();
        let pass = Pass::single(7, &[1, 2, 3]);
        assert!(pending.begin(&pass) && !pending.hold(0, &[4, 5, 6]) && pending.is_idle());
        assert_eq!(pending.accept(3), []);
        pending.expect();
        assert!(!pending.begin(&pass) && !pending.is_idle());
        assert!(pending.hold(0, &[4, 5, 6, 7, 8, 9]) && pending.hold(2, &[1, 2, 3]));
        let kept = [
            (Pass::single(7, &[1]), vec![(0, vec![4, 5]), (2, vec![1])]),
            (Pass::single(8, &[2]), vec![(0, vec![6, 7]), (2, vec![2])]),
        ];
        assert_eq!(pending.accept(2), kept);
        assert_eq!(pending.accept(2), [], "heard once");
        assert!(pending.begin(&pass), "the next pass is heard of at once");
    }
}
