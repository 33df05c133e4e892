//! Passes that cannot continue.

use sws_format::PieceKind;
use sws_model::{
    CausalLm, Chunk, Compute, FindRows, ForwardError, ForwardPass, ForwardState, KvPrecision,
    LogitRows, Ready, ResidentSource, Routed, Session, SourceError, TakeRow, WeightSource,
};

use crate::forward::support::Fixture;

#[test]
fn tokens_that_cannot_be_processed() {
    let fixture = Fixture::open("mixtral");
    let cases: &[(usize, usize, &[u32], &str)] = &[
        (10, 0, &[], "there are no tokens"),
        (10, 0, &[211], "the token id 211 does not exist in this model, whose ids end at 210"),
        (10, 0, &[1, u32::MAX, 2], "4294967295"),
        (10, 0, &[1; 11], "the text has 11 tokens, and the context has room for 10"),
        (
            10,
            7,
            &[1; 4],
            "4 more tokens do not fit behind the 7 that the context holds, with room for 10",
        ),
        (0, 0, &[1], "room for 0"),
        (usize::MAX, 0, &[1; 257], "room for 256"),
    ];
    for &(limit, before, tokens, expected) in cases {
        let model = ForwardPass::new(fixture.spec.clone());
        let mut session = Session::new(model, fixture.source(), limit, KvPrecision::F32);
        session.set_chunk(3);
        if before > 0 {
            session.prefill(&vec![5; before]).unwrap();
        }
        let message = session.prefill(tokens).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
        // Nothing has changed, and tokens that fit can still be processed.
        assert_eq!(session.len(), before);
        if limit > before {
            session.decode(7).unwrap();
        }
    }
}

#[test]
fn the_last_position_can_be_used() {
    for name in ["mixtral", "mixtral_swa", "deepseek_v2_groups"] {
        let fixture = Fixture::open(name);
        let tokens: Vec<u32> = fixture.golden().tokens.iter().copied().cycle().take(256).collect();
        let mut session = fixture.session();
        session.prefill(&tokens[..255]).unwrap();
        session.decode(tokens[255]).unwrap();
        let error = session.decode(1).unwrap_err();
        assert!(matches!(error, ForwardError::ContextFull { used: 256, asked: 1, limit: 256 }));
    }
}

#[test]
fn a_source_that_fails() {
    let fixture = Fixture::open("qwen2_moe_swa");
    let spec = &fixture.spec;
    let tokens: Vec<u32> = fixture.golden().tokens.iter().copied().cycle().take(90).collect();
    let expected = fixture.session().prefill(&tokens).unwrap().to_vec();
    let model = ForwardPass::new(spec.clone());
    let mut failed = 0;
    for calls in 0.. {
        let mut source = Failing { inner: fixture.source(), calls };
        let mut state = ForwardState::new(spec, 256, KvPrecision::F32);
        let sequence = state.add_sequence(spec);
        let batch = [Chunk { sequence, tokens: &tokens }];
        let pass = |state: &mut ForwardState, source: &mut Failing| {
            model.begin(state, &batch, source)?;
            (0..spec.visits()).try_for_each(|l| model.layer(l, state, source))?;
            Ok(model.logits(LogitRows::Last, state, source)?.to_vec())
        };
        let saved = state.save();
        let Err(error) = pass(&mut state, &mut source) else { break };
        failed += 1;
        assert!(matches!(&error, ForwardError::Source(_)), "{error}");
        assert_eq!(error.to_string(), "the disk is gone");
        source.calls = u32::MAX;
        // Failures before the first layer have changed nothing, and neither has a failure in the
        // head.
        if state.layer().is_none() && calls > 1 {
            let again = pass(&mut state, &mut source);
            assert!(matches!(again, Err(ForwardError::Interrupted)), "{calls}");
        }
        match calls % 2 {
            0 => state.rewind(saved),
            _ => {
                state.keep(saved);
                state.clear(sequence);
            }
        }
        assert_eq!(pass(&mut state, &mut source).unwrap(), expected, "{calls}");
    }
    // The embedding, then for each of four layers the attention, the shared expert and the routed
    // experts, then the head.
    assert_eq!(failed, 1 + 4 * 3 + 1);
}

struct Failing {
    inner: ResidentSource,
    /// Number of calls that still succeed.
    calls: u32,
}

impl Failing {
    fn count(&mut self) -> Result<&mut ResidentSource, SourceError> {
        self.calls = self.calls.checked_sub(1).ok_or("the disk is gone")?;
        Ok(&mut self.inner)
    }
}

impl WeightSource for Failing {
    fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), SourceError> {
        self.count()?.embed(tokens, rows)
    }

    fn look_up(
        &mut self,
        layer: usize,
        find: FindRows<'_>,
        take: TakeRow<'_>,
    ) -> Result<(), SourceError> {
        self.count()?.look_up(layer, find, take)
    }

    fn infrastructure(
        &mut self,
        layer: usize,
        pieces: &[PieceKind],
        compute: Compute<'_>,
    ) -> Result<(), SourceError> {
        self.count()?.infrastructure(layer, pieces, compute)
    }

    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        self.count()?.experts(layer, routed, ready)
    }

    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError> {
        self.count()?.head(compute)
    }
}
