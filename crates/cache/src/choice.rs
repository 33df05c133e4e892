//! Experts that routers choose.

use sws_format::Pass;

/// The experts that the router of a layer has chosen.
#[derive(Clone, Copy, Debug)]
pub struct RouterChoice<'a> {
    /// The pass.
    pub pass: &'a Pass,
    /// The layer, counted among all layers.
    pub layer: u32,
    /// The experts of each row of the pass in turn. Every row has equally many. An expert may be
    /// listed several times.
    pub experts: &'a [u32],
}

/// The experts chosen for one row of a pass, which is one step of its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChoiceRow<'a> {
    /// The number of the sequence.
    pub sequence: usize,
    /// The token, if it is known.
    pub token: Option<u32>,
    /// The experts.
    pub experts: &'a [u32],
}

impl<'a> RouterChoice<'a> {
    /// The rows of the pass, in order.
    pub fn rows(&self) -> impl Iterator<Item = ChoiceRow<'a>> {
        let &RouterChoice { pass, experts, .. } = self;
        let each = experts.len().checked_div(pass.len()).unwrap_or(0);
        let rows = pass.spans.iter().flat_map(|span| span.rows().map(|row| (span.sequence, row)));
        rows.map(move |(sequence, row)| ChoiceRow {
            sequence,
            token: pass.tokens.get(row).copied(),
            experts: &experts[row * each..][..each],
        })
    }
}
