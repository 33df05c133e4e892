//! Checkpoints of `tests/goldens`, in place and in shards, streamed and resident.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use sws_engine::{Infrastructure, InfrastructurePlan, StreamingSource, Waiter};
use sws_format::{Clock, Manifest, PieceId, PieceKind, ShardReader, open_checkpoint};
use sws_kernels::{EncodedRows, Encoder, Encoding, Fp8Scales, SourceDtype};
use sws_model::{
    CausalLm, ForwardError, ForwardPass, Inventory, KvPrecision, ModelSpec, Observer, PassSource,
    ResidentSource, Session,
};
use sws_shard::{ShardOptions, shard};
use sws_store::{Arena, NVMeWeightStore, PieceLayout, Read, StoreOptions};
pub(crate) use sws_testing::goldens::{goldens, variants};
use sws_testing::readers::MemoryReader;
use tempfile::TempDir;

/// A model on disk.
pub(crate) struct Fixture {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    pub(crate) spec: ModelSpec,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) inventory: Inventory,
    _shards: Option<TempDir>,
}

impl Fixture {
    /// A checkpoint read in place.
    pub(crate) fn in_place(dir: &Path) -> Fixture {
        Fixture::new(dir, None)
    }

    /// A checkpoint in shards.
    pub(crate) fn sharded(dir: &Path, encoding: Encoding) -> Fixture {
        let checkpoint = open_checkpoint(dir, None).unwrap();
        let naming = sws_model::naming(checkpoint.config()).unwrap();
        let temp = tempfile::tempdir().unwrap();
        let out = temp.path().join("shards");
        let options = ShardOptions { encoding, ..ShardOptions::default() };
        shard(&*checkpoint, naming.as_ref(), &out, &options, &|_| {}).unwrap();
        Fixture::new(&out, Some(temp))
    }

    fn new(dir: &Path, shards: Option<TempDir>) -> Fixture {
        let (manifest, spec) = sws_testing::open(dir).unwrap();
        let inventory = Inventory::new(&spec, &manifest).unwrap();
        let name = format!("{} {:?}", dir.display(), manifest.encoding);
        let (dir, manifest) = (dir.to_owned(), Arc::new(manifest));
        Fixture { name, dir, spec, manifest, inventory, _shards: shards }
    }

    /// All infrastructure, in an arbitrary order.
    pub(crate) fn infrastructure(&self) -> Vec<PieceId> {
        let asked = |id: &PieceId| {
            !matches!(id.kind(), PieceKind::Expert(_)) && !self.inventory.piece(*id).is_empty()
        };
        let mut ids: Vec<_> = self.manifest.pieces.iter().map(|p| p.id).filter(asked).collect();
        ids.sort_by_key(|id| (id.layer().unwrap_or(7).wrapping_mul(0x9e37_79b9), id.kind()));
        ids
    }

    pub(crate) fn slot_len(&self, id: PieceId) -> usize {
        PieceLayout::new(&self.manifest, Read::Piece(id)).unwrap().slot_len()
    }

    /// A plan that keeps `percent` of the infrastructure's pieces in memory, and has a ring of
    /// `more` bytes above the minimum.
    pub(crate) fn plan(&self, percent: usize, more: usize) -> InfrastructurePlan {
        let mut pinned = self.infrastructure();
        pinned.truncate((pinned.len() * percent).div_ceil(100));
        let mut plan = InfrastructurePlan { pinned, ring: 0, experts: true };
        let least =
            Infrastructure::least_ring(&self.spec, &self.inventory, &self.manifest, &plan).unwrap();
        plan.ring = least + more;
        plan
    }

    /// Reads the model's files from memory.
    pub(crate) fn memory(&self) -> MemoryReader {
        let read = |file: &sws_format::FileEntry| fs::read(self.dir.join(&file.path)).unwrap();
        MemoryReader::new(self.manifest.files.iter().map(read).collect())
    }

    pub(crate) fn store(&self, reader: Option<Arc<dyn ShardReader>>) -> Arc<NVMeWeightStore> {
        let options = StoreOptions { reader, cache: None, ..StoreOptions::default() };
        let manifest = Arc::clone(&self.manifest);
        Arc::new(NVMeWeightStore::open(manifest, &self.dir, options).unwrap())
    }

    /// Streams within a plan.
    pub(crate) fn streaming(
        &self,
        plan: &InfrastructurePlan,
        store: Arc<NVMeWeightStore>,
        waiter: Waiter,
    ) -> Result<Session<StreamingSource>, sws_engine::StreamError> {
        let kept: usize = plan.pinned.iter().map(|&id| self.slot_len(id)).sum();
        // Vectors need room while they are loaded.
        let arena = Arena::new((kept + plan.ring).max(4096)).unwrap();
        let model = ForwardPass::new(self.spec.clone());
        let infra = Infrastructure::open(&model, store, &arena, plan, waiter, &mut |_| ())?;
        Ok(self.session(StreamingSource::new(infra, None)))
    }

    pub(crate) fn session<S: PassSource>(&self, source: S) -> Session<S> {
        Session::new(ForwardPass::new(self.spec.clone()), source, usize::MAX, KvPrecision::F32)
    }

    pub(crate) fn resident(&self) -> Session<ResidentSource> {
        self.session(sws_testing::resident(&self.dir, &self.manifest, &self.spec).unwrap())
    }

    /// Arbitrary tokens of the vocabulary.
    pub(crate) fn tokens(&self, count: usize) -> Vec<u32> {
        (0..count as u64)
            .map(|n| (n * n * 31 + n * 7 + 3) as u32 % self.spec.vocab as u32)
            .collect()
    }
}

/// Hash of the logits of a text: of all positions of the first half together, then one token at a
/// time.
pub(crate) fn hash<S: PassSource>(session: &mut Session<S>, tokens: &[u32]) -> u64 {
    try_hash(session, tokens).unwrap()
}

pub(crate) fn try_hash<S: PassSource>(
    session: &mut Session<S>,
    tokens: &[u32],
) -> Result<u64, ForwardError> {
    struct Hash(u64);
    impl Observer for Hash {
        fn logits(&mut self, _: usize, logits: &[f32]) {
            for logit in logits {
                self.0 = (self.0 ^ u64::from(logit.to_bits())).wrapping_mul(0x100_0000_01b3);
            }
        }
    }
    let mut hash = Hash(0xcbf2_9ce4_8422_2325);
    let (prompt, rest) = tokens.split_at(tokens.len() / 2);
    session.clear();
    session.score(prompt, &mut hash)?;
    for &token in rest {
        hash.logits(0, session.decode(token)?);
    }
    Ok(hash.0)
}

pub(crate) fn waiter() -> Waiter {
    Waiter::new(Clock::real())
}

/// Writes a dense checkpoint whose head is too large to be read at once.
pub(crate) fn llama_with_a_large_head(dir: &Path) {
    llama(dir, Head::Own);
}

/// The same, with the embedding for a head: the blocks of its checksums are small.
pub(crate) fn llama_with_a_tied_head(dir: &Path) {
    llama(dir, Head::Tied);
}

/// The same with an embedding and a head in fp8.
pub(crate) fn llama_with_tables_in_fp8(dir: &Path) {
    llama(dir, Head::Fp8);
}

#[derive(Clone, Copy, PartialEq)]
enum Head {
    Own,
    Tied,
    /// Like the embedding.
    Fp8,
}

fn llama(dir: &Path, head: Head) {
    let [hidden, width, vocab, layers, kv] = [512usize, 1024, 20_000, 6, 256];
    let config = fs::read(goldens().join("llama/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    for (key, value) in [
        ("hidden_size", hidden),
        ("intermediate_size", width),
        ("vocab_size", vocab),
        ("num_hidden_layers", layers),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
        ("head_dim", 64),
    ] {
        config[key] = value.into();
    }
    config["tie_word_embeddings"] = (head == Head::Tied).into();
    if head == Head::Fp8 {
        config["quantization_config"] = serde_json::json!({
            "quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic",
        });
    }
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let mut state = 1u64;
    let mut add = |name: String, shape: Vec<usize>| {
        let count: usize = shape.iter().product();
        let mut bytes = Vec::with_capacity(2 * count);
        for _ in 0..count {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Numbers between 1/64 and 1/32, of either sign.
            let bits = 0x3c80 | (state >> 33) as u16 & 0x807f;
            bytes.extend(bits.to_le_bytes());
        }
        (name, (shape, bytes))
    };
    let mut tensors = vec![add("model.embed_tokens.weight".into(), vec![vocab, hidden])];
    if head != Head::Tied {
        tensors.push(add("lm_head.weight".into(), vec![vocab, hidden]));
    }
    tensors.push(add("model.norm.weight".into(), vec![hidden]));
    for l in 0..layers {
        for (name, shape) in [
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![hidden, hidden]),
            ("self_attn.k_proj", vec![kv, hidden]),
            ("self_attn.v_proj", vec![kv, hidden]),
            ("self_attn.o_proj", vec![hidden, hidden]),
            ("mlp.gate_proj", vec![width, hidden]),
            ("mlp.up_proj", vec![width, hidden]),
            ("mlp.down_proj", vec![hidden, width]),
        ] {
            tensors.push(add(format!("model.layers.{l}.{name}.weight"), shape));
        }
    }
    let mut views = Vec::new();
    let in_fp8: Vec<_> =
        tensors[..2 * usize::from(head == Head::Fp8)].iter().map(quantised).collect();
    for ((name, (shape, _)), [codes, scales]) in tensors.iter().zip(&in_fp8) {
        let blocks = shape.iter().map(|n| n.div_ceil(128)).collect();
        let view = |dtype, shape, bytes| TensorView::new(dtype, shape, bytes).unwrap();
        views.push((name.clone(), view(Dtype::F8_E4M3, shape.clone(), codes)));
        views.push((format!("{name}_scale_inv"), view(Dtype::F32, blocks, scales)));
    }
    for (name, (shape, bytes)) in &tensors[in_fp8.len()..] {
        let view = TensorView::new(Dtype::BF16, shape.clone(), bytes).unwrap();
        views.push((name.clone(), view));
    }
    safetensors::serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
}

/// Codes and scales of a matrix in bf16.
fn quantised((_, (shape, bytes)): &(String, (Vec<usize>, Vec<u8>))) -> [Vec<u8>; 2] {
    let mut rows = EncodedRows::default();
    let encoder =
        Encoder::new(Encoding::Fp8(Fp8Scales::Squares), SourceDtype::Bf16, shape[1]).unwrap();
    encoder.encode(bytes, &mut rows).unwrap();
    rows.parts
}
