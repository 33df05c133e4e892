//! Results are identical bit for bit, however the work is divided and whichever source supplies the
//! weights.

use rayon::ThreadPoolBuilder;
use sws_format::{PieceId, PieceKind, open_checkpoint};
use sws_kernels::{Encoding, Matrix, Tier};
use sws_model::{
    CausalLm, Chunk, Compute, FindRows, ForwardPass, ForwardState, KvPrecision, LogitRows,
    Observer, PassSource, Ready, Role, Routed, Session, SourceError, TakeRow, WeightSource,
    Weights,
};
use sws_shard::{ShardOptions, shard};

use crate::forward::support::{Fixture, Recorder, goldens, variants};

/// More tokens than a ring of window + 63 holds, so that rings with windows of 8 wrap around twice.
fn tokens(fixture: &Fixture) -> Vec<u32> {
    fixture.golden().tokens.iter().copied().cycle().take(150).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// The logits of every position.
pub(crate) fn score<S: PassSource>(
    mut session: Session<S>,
    tokens: &[u32],
    chunk: usize,
) -> Vec<u32> {
    let mut seen = Recorder::default();
    session.set_chunk(chunk);
    session.score(tokens, &mut seen).unwrap();
    bits(&seen.logits)
}

fn session<S: PassSource>(fixture: &Fixture, tier: Tier, source: S) -> Session<S> {
    let model = ForwardPass::with_tier(fixture.spec.clone(), tier);
    Session::new(model, source, usize::MAX, KvPrecision::F32)
}

#[test]
fn chunks() {
    for name in variants() {
        let fixture = Fixture::open(&name);
        let tokens = tokens(&fixture);
        let expected = score(fixture.session(), &tokens, tokens.len());
        for chunk in [1, 7, 64] {
            assert!(score(fixture.session(), &tokens, chunk) == expected, "{name}: {chunk}");
        }
    }
}

/// A long pass takes most parts of a layer in strips, and an expert with many rows in parts.
#[test]
fn strips() {
    for name in variants() {
        let fixture = Fixture::open(&name);
        let tokens = tokens(&fixture);
        let expected = score(fixture.session(), &tokens, tokens.len());
        for (strip, chunk) in [(1, 150), (7, 150), (64, 150), (64, 100)] {
            let model = ForwardPass::new(fixture.spec.clone()).with_strips(strip);
            let session = Session::new(model, fixture.source(), usize::MAX, KvPrecision::F32);
            let found = score(session, &tokens, chunk);
            assert!(found == expected, "{name}: strips of {strip} in chunks of {chunk}");
        }
    }
}

#[test]
fn threads_and_tiers() {
    for name in variants() {
        let fixture = Fixture::open(&name);
        let tokens = tokens(&fixture);
        let expected = score(fixture.session(), &tokens, tokens.len());
        for threads in [1, 2, 3] {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let found = pool.install(|| score(fixture.session(), &tokens, tokens.len()));
            assert!(found == expected, "{name}: {threads} threads");
        }
        for tier in Tier::available() {
            // The short prompt, because the scalar tier is slow. One token takes another path.
            let tokens = &tokens[..40];
            for chunk in [1, 40] {
                let found = score(session(&fixture, tier, fixture.source()), tokens, chunk);
                assert!(found == expected[..found.len()], "{name}: {tier}, chunks of {chunk}");
            }
        }
    }
}

#[test]
fn alone_or_in_a_batch() {
    for name in variants() {
        let fixture = Fixture::open(&name);
        let all = tokens(&fixture);
        let texts = [&all[..97], &all[5..20], &all[60..]];
        let expected = texts.map(|text| score(fixture.session(), text, text.len()));

        let (spec, mut source) = (&fixture.spec, fixture.source());
        let model = ForwardPass::new(spec.clone());
        let mut state = ForwardState::new(spec, usize::MAX, KvPrecision::F32).with_pages(64);
        let mut found = [const { Vec::new() }; 3];
        for _ in texts {
            state.add_sequence(spec);
        }
        // Each in chunks of its own length, in another order each time, until all have ended.
        for round in 0.. {
            let mut batch = Vec::new();
            for sequence in [round % 3, (round + 1) % 3, (round + 2) % 3] {
                let rest = &texts[sequence][state.len(sequence)..];
                let chunk = [23, 1, 7][sequence].min(rest.len());
                if chunk > 0 {
                    batch.push(Chunk { sequence, tokens: &rest[..chunk] });
                }
            }
            if batch.is_empty() {
                break;
            }
            model.begin(&mut state, &batch, &mut source).unwrap();
            (0..spec.visits()).for_each(|l| model.layer(l, &mut state, &mut source).unwrap());
            let mut logits = model.logits(LogitRows::All, &mut state, &mut source).unwrap();
            for chunk in batch {
                let (these, rest) = logits.split_at(chunk.tokens.len() * spec.vocab);
                found[chunk.sequence].extend(bits(these));
                logits = rest;
            }
        }
        assert!(found == expected, "{name}");
    }
}

#[test]
fn any_order_of_experts_and_rows() {
    for name in variants() {
        let fixture = Fixture::open(&name);
        let tokens = tokens(&fixture);
        let expected = score(fixture.session(), &tokens, tokens.len());
        for (together, rows) in [(1, usize::MAX), (3, 5), (usize::MAX, 1)] {
            let source = Piecemeal { inner: fixture.source(), together, rows };
            let found = score(session(&fixture, Tier::best(), source), &tokens, 50);
            assert!(found == expected, "{name}: {together} experts, {rows} rows");
        }
    }
}

#[test]
fn shards_in_bf12_and_bf11() {
    for (index, name) in variants().into_iter().enumerate() {
        let encoding = [Encoding::Bf12, Encoding::Bf11][index % 2];
        let fixture = Fixture::open(&name);
        let tokens = tokens(&fixture);
        let checkpoint = open_checkpoint(goldens().join(&name), None).unwrap();
        let naming = sws_model::naming(checkpoint.config()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("shards");
        let options = ShardOptions { encoding, ..ShardOptions::default() };
        shard(&*checkpoint, &*naming, &out, &options, &|_| ()).unwrap();
        let sharded = Fixture::at(&out);
        let encodings = sharded.manifest.pieces.iter().flat_map(|p| &p.tensors).map(|t| t.encoding);
        assert!(encodings.filter(|e| *e == Some(encoding)).count() > 1, "{name}");
        let found = score(session(&fixture, Tier::best(), sharded.source()), &tokens, tokens.len());
        assert!(found == score(fixture.session(), &tokens, tokens.len()), "{name}");
    }
}

/// Rounded keys and values change the results. They are close to the exact ones, and the same for
/// all chunk sizes.
#[test]
fn rounded_keys_and_values() {
    for name in ["mixtral", "mixtral_swa", "qwen3", "deepseek_v2"] {
        let fixture = Fixture::open(name);
        let tokens = tokens(&fixture);
        let run = |precision, chunk| {
            let model = ForwardPass::new(fixture.spec.clone());
            let mut seen = Recorder::default();
            let mut session = Session::new(model, fixture.source(), usize::MAX, precision);
            session.set_chunk(chunk);
            session.score(&tokens, &mut seen).unwrap();
            seen.logits
        };
        let exact = run(KvPrecision::F32, 150);
        for (precision, most) in [(KvPrecision::Bf16, 0.05), (KvPrecision::Q8, 0.15)] {
            let what = format!("{name}, {}", precision.name());
            let rounded = run(precision, 150);
            assert_eq!(bits(&rounded), bits(&run(precision, 7)), "{what}");
            assert_ne!(bits(&rounded), bits(&exact), "{what}");
            let distance: f32 = rounded.iter().zip(&exact).map(|(a, b)| (a - b) * (a - b)).sum();
            let length: f32 = exact.iter().map(|x| x * x).sum();
            assert!((distance / length).sqrt() < most, "{what}: {distance} of {length}");
        }
    }
}

/// Serves experts in descending order, `together` of them at a time, and matrices in blocks of
/// `rows` rows, in descending order as far as they may be.
pub(crate) struct Piecemeal<S> {
    pub(crate) inner: S,
    pub(crate) together: usize,
    pub(crate) rows: usize,
}

struct Blocks<'a> {
    inner: &'a mut dyn Weights,
    rows: usize,
}

impl<S: WeightSource> WeightSource for Piecemeal<S> {
    fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), SourceError> {
        self.inner.embed(tokens, rows)
    }

    fn look_up(
        &mut self,
        layer: usize,
        find: FindRows<'_>,
        take: TakeRow<'_>,
    ) -> Result<(), SourceError> {
        self.inner.look_up(layer, find, take)
    }

    fn infrastructure(
        &mut self,
        layer: usize,
        pieces: &[PieceKind],
        compute: Compute<'_>,
    ) -> Result<(), SourceError> {
        let rows = self.rows;
        self.inner.infrastructure(layer, pieces, &mut |w| compute(&mut Blocks { inner: w, rows }))
    }

    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        let (together, rows) = (self.together, self.rows);
        self.inner.experts(layer, routed, &mut |experts, inner| {
            let mut experts = experts.to_vec();
            experts.reverse();
            let mut blocks = Blocks { inner, rows };
            experts.chunks(together.min(experts.len())).try_for_each(|e| ready(e, &mut blocks))
        })
    }

    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError> {
        let rows = self.rows;
        self.inner.head(&mut |inner| compute(&mut Blocks { inner, rows }))
    }
}

impl<S: WeightSource> Observer for Piecemeal<S> {}

impl<S: WeightSource> PassSource for Piecemeal<S> {}

impl Weights for Blocks<'_> {
    fn vector(&self, piece: PieceId, role: Role) -> &[f32] {
        self.inner.vector(piece, role)
    }

    /// Keys are whole, so that both paths are mixed.
    fn matrix(&self, piece: PieceId, role: Role) -> Option<Matrix<'_>> {
        self.inner.matrix(piece, role).filter(|_| role == Role::Key || self.rows == usize::MAX)
    }

    fn blocks(
        &mut self,
        piece: PieceId,
        role: Role,
        compute: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), SourceError> {
        let matrix = self.inner.matrix(piece, role).unwrap();
        let mut starts: Vec<usize> = (0..matrix.row_count()).step_by(self.rows).collect();
        if !matches!(role, Role::KvUp | Role::ValueUp) {
            starts.reverse();
        }
        for first in starts {
            let end = matrix.row_count().min(first + self.rows);
            compute(first, &matrix.rows(first..end));
        }
        Ok(())
    }
}
