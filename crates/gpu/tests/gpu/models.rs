//! Whole models with every expert on the device have the CPU's bits.

use std::fs::File;
use std::path::PathBuf;

use sws_format::{Manifest, PieceId, PieceKind};
use sws_gpu::{ComputeDevice, ExpertTensor, MatrixBytes, VramExperts, VramShape};
use sws_kernels::Activations;
use sws_model::{
    CausalLm, ForwardPass, Inventory, KvPrecision, ModelSpec, PassSource, ResidentSource, Session,
};
use sws_os::file::read_exact_at;
use sws_testing::goldens::{Golden, Runnable, golden_dir, runnable, variants};

use crate::in_front::VramSource;
use crate::support::{device, turn};

/// A golden checkpoint with the bytes of its experts.
pub(crate) struct Fixture {
    runnable: Runnable,
    golden: PathBuf,
    spec: ModelSpec,
    manifest: Manifest,
    inventory: Inventory,
}

impl Fixture {
    pub(crate) fn open(name: &str) -> Fixture {
        let runnable = runnable(name);
        let (manifest, spec) = sws_testing::open(&runnable.dir).unwrap();
        let inventory = Inventory::new(&spec, &manifest).unwrap();
        Fixture { golden: golden_dir(name), runnable, spec, manifest, inventory }
    }

    pub(crate) fn tokens(&self) -> Vec<u32> {
        Golden::read(&self.golden).tokens
    }

    pub(crate) fn weights(&self) -> ResidentSource {
        sws_testing::resident(&self.runnable.dir, &self.manifest, &self.spec).unwrap()
    }

    pub(crate) fn session<S: PassSource>(&self, source: S) -> Session<S> {
        Session::new(ForwardPass::new(self.spec.clone()), source, usize::MAX, KvPrecision::F32)
    }

    pub(crate) fn experts(&self) -> Vec<PieceId> {
        let all = self.inventory.pieces().filter(|id| matches!(id.kind(), PieceKind::Expert(_)));
        let mut all: Vec<PieceId> = all.collect();
        all.sort_unstable();
        all
    }

    /// The parts of an expert's tensors.
    pub(crate) fn read(&self, id: PieceId) -> Vec<Vec<Vec<u8>>> {
        let piece = self.manifest.piece(id).unwrap();
        let read = |held: &sws_model::HeldTensor| {
            let parts = piece.tensors[held.index].parts.iter().map(|extent| {
                let path = &self.manifest.files[extent.file as usize].path;
                let mut bytes = vec![0; extent.len as usize];
                let file = File::open(self.runnable.dir.join(path)).unwrap();
                read_exact_at(&file, &mut bytes, extent.offset).unwrap();
                bytes
            });
            parts.collect()
        };
        self.inventory.piece(id).iter().map(read).collect()
    }

    /// Calls `take` with the tensors of an expert.
    pub(crate) fn with<T>(&self, id: PieceId, take: impl FnOnce(&[ExpertTensor<'_>]) -> T) -> T {
        let bytes = self.read(id);
        let tensors = self.inventory.piece(id).iter().zip(&bytes).map(|(held, parts)| {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let bytes = MatrixBytes::new(held.encoding, held.rows, held.cols, &parts).unwrap();
            ExpertTensor { role: held.role, bytes }
        });
        let tensors: Vec<ExpertTensor<'_>> = tensors.collect();
        take(&tensors)
    }

    /// The sizes of its experts; none if none of them is for a device.
    pub(crate) fn shape(&self) -> Option<VramShape> {
        VramShape::of(&self.inventory, &self.manifest, Activations::F32)
    }

    /// Room for so many experts, beside the check and the exchange.
    pub(crate) fn open_vram(&self, device: Box<dyn ComputeDevice>, experts: u64) -> VramExperts {
        let shape = self.shape().unwrap();
        let exchange = sws_gpu::ExchangeSize::of(shape.products, shape.rows, shape.cols).bytes();
        let limit = (exchange + experts * shape.slot_bytes).max(2 << 20);
        let vram = VramExperts::open(device, limit, &shape).unwrap();
        assert!(vram.ledger().most() <= limit && vram.free_slots() as u64 >= experts);
        vram
    }
}

/// The bits of all logits: a chunk, a token, and the rest.
pub(crate) fn bits(lm: &mut dyn CausalLm, tokens: &[u32]) -> Vec<u32> {
    let mut all = Vec::new();
    for chunk in [&tokens[..30], &tokens[30..31], &tokens[31..]] {
        all.extend(lm.prefill(chunk).unwrap().iter().map(|x| x.to_bits()));
    }
    all
}

#[test]
fn every_expert_on_the_device_gives_the_cpus_bits() {
    let _turn = turn();
    let (mut models, mut experts, mut logits) = (0, 0, 0);
    let mut left = Vec::new();
    for name in variants() {
        let fixture = Fixture::open(&name);
        if fixture.spec.max_top_k() == 0 {
            continue;
        }
        if fixture.shape().is_none() {
            left.push(name);
            continue;
        }
        let Some(device) = device() else { return };
        let ids = fixture.experts();
        let mut vram = fixture.open_vram(Box::new(device), ids.len() as u64);
        let mut held = 0;
        for id in &ids {
            held += usize::from(fixture.with(*id, |tensors| vram.promote(*id, tensors)));
        }
        assert_eq!(vram.failure(), None);
        let tokens = fixture.tokens();
        let expected = bits(&mut fixture.session(fixture.weights()), &tokens);
        let source = VramSource { inner: fixture.weights(), vram };
        let mut session = fixture.session(source);
        let found = bits(&mut session, &tokens);
        assert_eq!(session.source().vram.failure(), None, "{name}");
        assert!(session.source().vram.layers() > 0, "{name}");
        assert_eq!(found, expected, "{name}");
        models += 1;
        experts += held;
        logits += found.len();
    }
    eprintln!(
        "{models} models with {experts} experts on the device: 0 of {logits} logits differ; on the CPU: {left:?}"
    );
    assert!(models >= 10, "{models}");
}
