//! Passes request tensors in the read order that the spec promises.

use std::cell::RefCell;

use sws_format::{PieceId, PieceKind};
use sws_kernels::Matrix;
use sws_model::{
    CausalLm, Compute, FindRows, ForwardPass, KvPrecision, Observer, PassSource, ReadStep, Ready,
    ResidentSource, Role, Routed, Session, SourceError, TakeRow, TensorSpec, WeightSource, Weights,
};

use crate::forward::support::{Fixture, variants};

type Asked = Vec<(PieceId, Role)>;

#[test]
fn passes_request_tensors_in_the_order_of_the_spec() {
    for name in variants() {
        let fixture = Fixture::open(&name);
        let tokens = fixture.golden().tokens;
        let source =
            Recording { inner: fixture.source(), asked: RefCell::default(), routes: vec![] };
        let model = ForwardPass::new(fixture.spec.clone());
        let mut session = Session::new(model, source, usize::MAX, KvPrecision::F32);
        for tokens in [&tokens[..1], &tokens[1..8]] {
            session.prefill(tokens).unwrap();
            let Recording { asked, routes, .. } = session.source();
            let (asked, routes) = (asked.take(), std::mem::take(routes));
            assert_eq!(asked, promised(&fixture, &routes), "{name}");
        }
    }
}

#[test]
fn pieces_are_stored_in_the_order_of_reading() {
    for name in variants() {
        let spec = Fixture::open(&name).spec;
        for layer in 0..spec.layers.len() {
            for read in spec.reads(layer) {
                if let ReadStep::Experts { tensors, .. } = &read {
                    assert!(tensors.is_sorted_by_key(|tensor| tensor.role), "{name}: {read:?}");
                }
            }
            let of = |kind| {
                let reads = spec.reads(layer).into_iter();
                reads.filter_map(move |read| match read {
                    ReadStep::Tensor(other, TensorSpec { role, .. }) => {
                        (other == kind).then_some(role)
                    }
                    ReadStep::Experts { .. } => None,
                })
            };
            use PieceKind::{Attention, LayerInput, Mlp, Norms, Router, SharedExpert};
            for kind in [Norms, Attention, Router, SharedExpert, Mlp, LayerInput] {
                assert!(of(kind).is_sorted(), "{name}: {kind:?}");
            }
        }
    }
}

/// The read order of a pass in which the routers selected these experts.
fn promised(fixture: &Fixture, routes: &[Vec<u32>]) -> Asked {
    let spec = &fixture.spec;
    let mut routes = routes.iter();
    let mut promised = Vec::new();
    for visit in 0..spec.visits() {
        let (layer, reads) = spec.reads_of(visit);
        for read in reads {
            match read {
                ReadStep::Tensor(kind, tensor) => {
                    promised.push((PieceId::new(layer as u32, kind), tensor.role));
                }
                ReadStep::Experts { tensors, .. } => {
                    for &expert in routes.next().unwrap() {
                        let piece = PieceId::expert(layer as u32, expert);
                        promised.extend(tensors.iter().map(|tensor| (piece, tensor.role)));
                    }
                }
            }
        }
    }
    promised.extend(spec.ending().map(|(piece, tensor)| (piece, tensor.role)));
    promised
}

/// Records the requests, and serves experts one at a time.
struct Recording {
    inner: ResidentSource,
    asked: RefCell<Asked>,
    routes: Vec<Vec<u32>>,
}

struct Recorded<'a> {
    inner: &'a mut dyn Weights,
    asked: &'a RefCell<Asked>,
}

impl WeightSource for Recording {
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
        let Recording { inner, asked, .. } = self;
        inner.infrastructure(layer, pieces, &mut |inner| compute(&mut Recorded { inner, asked }))
    }

    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        let Recording { inner, asked, routes } = self;
        routes.push(routed.distinct.clone());
        inner.experts(layer, routed, &mut |experts, inner| {
            let mut weights = Recorded { inner, asked };
            experts.chunks(1).try_for_each(|expert| ready(expert, &mut weights))
        })
    }

    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError> {
        let Recording { inner, asked, .. } = self;
        inner.head(&mut |inner| compute(&mut Recorded { inner, asked }))
    }
}

impl Observer for Recording {}

impl PassSource for Recording {}

impl Weights for Recorded<'_> {
    fn vector(&self, piece: PieceId, role: Role) -> &[f32] {
        self.asked.borrow_mut().push((piece, role));
        self.inner.vector(piece, role)
    }

    fn matrix(&self, piece: PieceId, role: Role) -> Option<Matrix<'_>> {
        self.asked.borrow_mut().push((piece, role));
        self.inner.matrix(piece, role)
    }

    fn blocks(
        &mut self,
        piece: PieceId,
        role: Role,
        compute: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), SourceError> {
        self.inner.blocks(piece, role, compute)
    }
}
