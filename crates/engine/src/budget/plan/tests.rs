//! Plans of synthetic models with the shapes of real ones.

use proptest::prelude::*;
use sws_format::{
    Configuration, Extent, FileEntry, Manifest, ModelIdentity, Piece, PieceKind, Placement,
    StandIn, Tensor, check_len, encoding_of,
};
use sws_kernels::Encoding;

use super::*;
use crate::{Infrastructure, InfrastructurePlan};

const GIB: u64 = 1 << 30;

/// The shape of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    layers: usize,
    hidden: usize,
    vocab: usize,
    heads: usize,
    kv_heads: usize,
    /// Width of an expert, or of the MLP.
    width: usize,
    /// 0 for a dense model.
    experts: usize,
    top_k: usize,
    tied: bool,
}

const MIXTRAL: Shape = Shape {
    layers: 32,
    hidden: 4096,
    vocab: 32_000,
    heads: 32,
    kv_heads: 8,
    width: 14_336,
    experts: 8,
    top_k: 2,
    tied: false,
};
const QWEN: Shape = Shape {
    layers: 48,
    hidden: 2048,
    vocab: 151_936,
    heads: 16,
    kv_heads: 4,
    width: 768,
    experts: 128,
    top_k: 8,
    tied: false,
};
const LLAMA: Shape = Shape {
    layers: 32,
    hidden: 4096,
    vocab: 128_256,
    heads: 32,
    kv_heads: 8,
    width: 14_336,
    experts: 0,
    top_k: 0,
    tied: false,
};

/// `tales-moe` with experts of 14 MB.
const INFLATED: Shape = Shape {
    layers: 8,
    hidden: 192,
    vocab: 4096,
    heads: 2,
    kv_heads: 1,
    width: 12_160,
    experts: 32,
    top_k: 4,
    tied: false,
};

impl Shape {
    fn spec(&self) -> (ModelSpec, Configuration) {
        let Shape { layers, hidden, vocab, heads, kv_heads, width, experts, top_k, tied } = self;
        let model_type = if *experts > 0 { "qwen3_moe" } else { "llama" };
        let config = format!(
            r#"{{"model_type": "{model_type}", "num_hidden_layers": {layers}, "hidden_size": {hidden},
                "vocab_size": {vocab}, "num_attention_heads": {heads}, "head_dim": 128,
                "num_key_value_heads": {kv_heads}, "intermediate_size": {width},
                "moe_intermediate_size": {width}, "num_experts": {experts}, "decoder_sparse_step": 1,
                "num_experts_per_tok": {top_k}, "tie_word_embeddings": {tied},
                "mlp_only_layers": [], "norm_topk_prob": true, "hidden_act": "silu",
                "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 32768}}"#
        );
        let config = Configuration::from_json("config.json", config.as_bytes()).unwrap();
        (ModelSpec::of(&config).unwrap(), config)
    }

    /// Names and shapes of all tensors.
    fn tensors(&self) -> Vec<(String, Vec<u64>)> {
        let n = |n: usize| n as u64;
        let (h, w) = (n(self.hidden), n(self.width));
        let (q, kv) = (128 * n(self.heads), 128 * n(self.kv_heads));
        let mut all = vec![
            ("model.embed_tokens.weight".to_owned(), vec![n(self.vocab), h]),
            ("model.norm.weight".to_owned(), vec![h]),
        ];
        if !self.tied {
            all.push(("lm_head.weight".to_owned(), vec![n(self.vocab), h]));
        }
        for layer in 0..self.layers {
            let mut add = |name: String, shape| {
                all.push((format!("model.layers.{layer}.{name}.weight"), shape));
            };
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                add(norm.to_owned(), vec![h]);
            }
            for (name, shape) in [("q", [q, h]), ("k", [kv, h]), ("v", [kv, h]), ("o", [h, q])] {
                add(format!("self_attn.{name}_proj"), shape.to_vec());
            }
            let mlp = [("gate", [w, h]), ("up", [w, h]), ("down", [h, w])];
            if self.experts == 0 {
                mlp.iter()
                    .for_each(|(name, shape)| add(format!("mlp.{name}_proj"), shape.to_vec()));
                continue;
            }
            for norm in ["q_norm", "k_norm"] {
                add(format!("self_attn.{norm}"), vec![128]);
            }
            add("mlp.gate".to_owned(), vec![n(self.experts), h]);
            for expert in 0..self.experts {
                for (name, shape) in mlp {
                    add(format!("mlp.experts.{expert}.{name}_proj"), shape.to_vec());
                }
            }
        }
        all
    }

    /// A manifest with all tensors in bf16, and every piece at the start of a page.
    fn manifest(&self) -> Manifest {
        let (spec, config) = self.spec();
        let naming = sws_model::naming(&config).unwrap();
        let mut pieces: Vec<Piece> = Vec::new();
        for (name, shape) in self.tensors() {
            let Placement::Piece { id, .. } = naming.place(&name, &shape) else {
                panic!("{name} belongs nowhere")
            };
            let row = 2 * shape[shape.len() - 1];
            let len = 2 * shape.iter().product::<u64>();
            let check_len = check_len(row, len / row, id.kind());
            let checks = vec![0; len.div_ceil(check_len) as usize];
            let tensor = Tensor {
                name,
                dtype: sws_format::Dtype::BF16,
                shape,
                transposed: false,
                packing: None,
                slice: None,
                source: "model.safetensors".to_owned(),
                encoding: Some(Encoding::Bf16),
                parts: vec![Extent { file: 0, offset: 0, len, check_len, checks }],
                origins: Vec::new(),
                error: None,
            };
            match pieces.iter_mut().find(|piece| piece.id == id) {
                Some(piece) => piece.tensors.push(tensor),
                None => pieces.push(Piece { id, tensors: vec![tensor], stand_in: None }),
            }
        }
        pieces.sort_by_key(|piece| piece.id);
        let mut at = 0u64;
        for piece in &mut pieces {
            at = at.next_multiple_of(PAGE);
            for tensor in &mut piece.tensors {
                tensor.parts[0].offset = at;
                at += tensor.parts[0].len;
            }
        }
        let model_type = spec.model_type;
        Manifest {
            model: ModelIdentity { model_type, fingerprint: String::new() },
            encoding: None,
            files: vec![FileEntry { path: "model.safetensors".to_owned(), len: at }],
            pieces,
            copies: Vec::new(),
        }
    }

    fn planner(&self, options: PlanOptions) -> Planner {
        let (spec, manifest) = (self.spec().0, self.manifest());
        let inventory = Inventory::new(&spec, &manifest).unwrap();
        Planner::new(&spec, &inventory, &manifest, PROCESS, options).unwrap()
    }
}

const PROCESS: ProcessMemory = ProcessMemory {
    program: 12 << 20,
    stacks: 2 << 20,
    heap: 20 << 20,
    tokenizer: 60 << 20,
    slack: 4 << 20,
    files: 10 << 20,
    kernel: 2 << 20,
    peak: 90 << 20,
};

fn options() -> PlanOptions {
    PlanOptions { tier: sws_kernels::Tier::PORTABLE, threads: 2, ..PlanOptions::default() }
}

/// Checks that the ring is long enough for all streamed weights.
fn flows(shape: &Shape, plan: &Plan) {
    let (spec, manifest) = (shape.spec().0, shape.manifest());
    let inventory = Inventory::new(&spec, &manifest).unwrap();
    let Plan { pinned, ring, experts_stream, .. } = plan.clone();
    let plan = InfrastructurePlan { pinned, ring, experts: experts_stream };
    let least = Infrastructure::least_ring(&spec, &inventory, &manifest, &plan).unwrap();
    assert!(least <= ring, "the ring needs {least} bytes and has {ring}");
}

/// Checks the invariants of a plan.
fn check(planner: &Planner, ram: u64, plan: &Plan) {
    let Plan { ledger, .. } = plan;
    assert_eq!(ledger.budget(), ram);
    assert_eq!(ledger.lines().map(|(_, bytes)| bytes).sum::<u64>(), ram);
    let used = [MemoryUse::Pinned, MemoryUse::Ring, MemoryUse::Slots]
        .map(|what| ledger.get(what))
        .iter()
        .sum();
    assert!(plan.arena_bytes() as u64 >= used);
    assert!(plan.arena_bytes() as u64 - used <= ledger.get(MemoryUse::Spare));
    let slots: u64 = plan.slots.iter().map(SlotClass::bytes).sum();
    assert_eq!(
        (plan.ring as u64, slots),
        (ledger.get(MemoryUse::Ring), ledger.get(MemoryUse::Slots))
    );
    // Lent slots fit beside the activations of one token, and there is an expert for each slot.
    let lent = with_tables(whole_pages(plan.lent_bytes() as u64));
    assert!(
        plan.lent.is_empty()
            || planner.work(planner.chunks()[0]) + lent <= ledger.get(MemoryUse::Activations)
    );
    assert!(plan.lent.is_empty() || !plan.slots.is_empty());
    // Slots in the memory of structured output fit into it.
    let structured: u64 = plan.structured_lent.iter().map(SlotClass::bytes).sum();
    assert!(
        structured == 0
            || mapped(structured) <= ledger.get(MemoryUse::Structured) && !plan.slots.is_empty()
    );
    // Contexts of several sequences, or a long one, hold experts that have no other slot.
    let contexts: u64 = plan.context_lent.iter().map(SlotClass::bytes).sum();
    assert!(contexts == 0 || mapped(contexts) <= ledger.get(MemoryUse::KvCache));
    let in_pages = page(plan.sequences, plan.context) <= plan.context;
    assert!(contexts == 0 || in_pages && !plan.slots.is_empty());
    let in_contexts: usize = plan.context_lent.iter().map(|class| class.count).sum();
    assert!(plan.most_experts() + in_contexts <= planner.pieces.slots.experts());
    assert!(plan.most_experts() <= planner.pieces.slots.experts());
    let pieces = &planner.pieces;
    let len = |id: &PieceId| match id.kind() {
        PieceKind::Embed if pieces.embedding.is_some() => pieces.embedding.unwrap().len,
        _ => pieces.cyclic.iter().find(|piece| piece.id == *id).unwrap().len,
    };
    assert_eq!(plan.pinned.iter().map(len).sum::<u64>(), ledger.get(MemoryUse::Pinned));
    // The ring has room for all streamed blocks.
    let streams = plan.pinned.len() < pieces.cyclic.len();
    if streams {
        assert!(plan.ring as u64 >= 2 * pieces.cyclic_unit);
    }
    if plan.experts_stream {
        assert!(plan.ring as u64 >= 2 * pieces.expert_unit && plan.slots.is_empty());
    } else if pieces.slots.experts() > 0 {
        assert!(!streams && slots >= pieces.slots.least_bytes());
    }
    assert!(planner.kv(plan.context) <= ledger.get(MemoryUse::KvCache));
    assert_eq!(planner.encoding(plan.context), ledger.get(MemoryUse::Encoding));
    assert!(planner.work_at(plan.chunk, plan.context) <= ledger.get(MemoryUse::Activations));
    // The slack of a chunk beyond a strip is part of its work.
    let grown = planner.kv(plan.context) + planner.work_at(planner.chunks()[1], plan.context);
    assert!(grown / SLACK_SHARE <= ledger.get(MemoryUse::Slack));
}

#[test]
fn encoding_has_room_for_every_context() {
    let encoding = [1 << 20, 2 << 10];
    let planner = QWEN.planner(PlanOptions { encoding, ..options() });
    let without = QWEN.planner(options());
    let least = encoding[0] + encoding[1] * LEAST_CONTEXT as u64;
    // The only other increase is that of page tables.
    let more = planner.minimum() - without.minimum();
    assert!((least..least + (64 << 10)).contains(&more), "{more}");
    let mut contexts = Vec::new();
    for more in [0, 1, 64 << 20, GIB, 8 * GIB] {
        let ram = planner.minimum() + more;
        let plan = planner.plan(ram).unwrap();
        check(&planner, ram, &plan);
        contexts.push(plan.context);
    }
    assert!(contexts.is_sorted(), "{contexts:?}");
    assert_eq!((contexts[0], contexts[4]), (LEAST_CONTEXT, CONTEXT));
    assert!(matches!(planner.plan(planner.minimum() - 1), Err(PlanError::TooSmall { .. })));
}

/// All stand-ins leave room for two experts and the longest verification, and for nothing that is not needed.
#[test]
fn all_stand_ins_of_mixtral_fit_in_three_tenths() {
    let spec =
        ModelSpec::parse(include_bytes!("../../../../../configs/mixtral-8x7b.json")).unwrap();
    let mut manifest = spec.outline(|_| Encoding::Bf16).unwrap();
    let mut copies = spec.outline(|_| Encoding::Q4).unwrap().pieces.into_iter();
    for piece in &mut manifest.pieces {
        let copy = copies.next().unwrap();
        if let PieceKind::Expert(_) = piece.id.kind() {
            let tensors = copy.tensors;
            piece.stand_in = Some(StandIn { encoding: Encoding::Q4, tensors });
        }
    }
    let inventory = Inventory::new(&spec, &manifest).unwrap();
    let planner = |stand_ins| {
        let options = PlanOptions { stand_ins, verify_len: 65, ..options() };
        Planner::new(&spec, &inventory, &manifest, PROCESS, options).unwrap()
    };
    let (all, auto) = (planner(StandInUse::All), planner(StandInUse::Auto));
    let least = all.minimum();
    // And the activations of 65 tokens that are verified, packed for the copies.
    assert!(least * 1000 < all.weights() * 301, "{least} of {}", all.weights());
    for more in [0, 1, 100 << 20, 4 * GIB] {
        let plan = all.plan(least + more).unwrap();
        assert_eq!((plan.stand_ins.len(), plan.verify_len), (256, 65), "{more}");
        assert!(
            plan.slots[0].count >= 2 && (more > 0 || plan.slots[0].count == 2),
            "{:?}",
            plan.slots
        );
    }
    let refused = all.plan(least - 1);
    assert!(matches!(refused, Err(PlanError::StandIns { smallest, .. }) if smallest > least));
    assert!(auto.minimum() * 10 < least);
}

/// Slots of nested experts hold what is beside their stand-ins, and the ring of the smallest budget has
/// room for whole tops, which have several checksums.
#[test]
fn nested_experts_of_mixtral_are_planned_for() {
    let spec =
        ModelSpec::parse(include_bytes!("../../../../../configs/mixtral-8x7b.json")).unwrap();
    let manifest = spec.outline(|kind| encoding_of(kind, Encoding::Nested)).unwrap();
    let inventory = Inventory::new(&spec, &manifest).unwrap();
    let planner = |stand_ins| {
        let options = PlanOptions { stand_ins, verify_len: 65, ..options() };
        Planner::new(&spec, &inventory, &manifest, PROCESS, options).unwrap()
    };
    let (off, all) = (planner(StandInUse::Off), planner(StandInUse::All));
    assert_eq!(off.weights(), all.weights());
    let bf16 = spec.outline(|_| Encoding::Bf16).unwrap().files[0].len;
    assert!(all.minimum() * 100 < bf16 * 29, "{} of {bf16}", all.minimum());
    let slot = |planner: &Planner| {
        let plan = planner.plan(40 * GIB).unwrap();
        (plan.slots[0].len as f64, plan.per_token.active)
    };
    let ((whole, active), (beside, same)) = (slot(&off), slot(&all));
    assert!((0.58..0.63).contains(&(beside / whole)), "{beside} of {whole}");
    assert!(active.abs_diff(same) * 1000 < active, "{active} and {same}");
    let Plan { pinned, ring, experts_stream, .. } = off.plan(off.minimum()).unwrap();
    let plan = InfrastructurePlan { pinned, ring, experts: experts_stream };
    let least = Infrastructure::least_ring(&spec, &inventory, &manifest, &plan).unwrap();
    assert!(experts_stream && least <= ring, "the ring needs {least} bytes and has {ring}");
}

#[test]
fn real_shapes_at_several_budgets() {
    // Shape, budget in percent of the weights, all infrastructure pinned, slots, with lent ones, chunk.
    #[rustfmt::skip]
    let cases = [
        (MIXTRAL, 2, false, [0, 0], 512),
        (MIXTRAL, 10, true, [13, 14], 4096),
        (MIXTRAL, 25, true, [51, 52], 4096),
        (MIXTRAL, 50, true, [113, 114], 4096),
        (MIXTRAL, 100, true, [237, 238], 4096),
        (QWEN, 2, false, [0, 0], 512),
        (QWEN, 10, true, [315, 359], 4096),
        (QWEN, 25, true, [1258, 1302], 4096),
        (QWEN, 50, true, [2752, 2796], 4096),
        (LLAMA, 10, false, [0, 0], 512),
        (LLAMA, 50, false, [0, 0], 512),
        (LLAMA, 110, true, [0, 0], 512),
        (INFLATED, 12, true, [14, 18], 158),
        (INFLATED, 25, true, [41, 51], 4096),
    ];
    let found = cases.each_ref().map(|(shape, percent, ..)| {
        let planner = shape.planner(options());
        let ram = planner.weights() * percent / 100;
        let plan = planner.plan(ram).unwrap();
        check(&planner, ram, &plan);
        flows(shape, &plan);
        let slots: usize = plan.slots.iter().map(|class| class.count).sum();
        let pinned = plan.pinned.len() >= planner.pieces.cyclic.len();
        (*shape, *percent, pinned, [slots, plan.most_experts()], plan.chunk)
    });
    assert_eq!(found, cases);
}

/// Contexts that come in pages hold experts. Qwen's positions take 196,608 bytes, its experts 9.4 MB.
#[test]
fn contexts_of_several_sequences_and_long_ones_have_slots() {
    // Positions, sequences, slots of contexts.
    let cases = [(4096, 1, 0), (8192, 1, 170), (32_768, 1, 681), (4096, 4, 340)];
    let found = cases.map(|(context, batch, _)| {
        let options = PlanOptions { context: Some(context), batch, ..options() };
        let planner = QWEN.planner(options);
        let ram = planner.minimum() + 12 * GIB;
        let plan = planner.plan(ram).unwrap();
        check(&planner, ram, &plan);
        let slots: usize = plan.context_lent.iter().map(|class| class.count).sum();
        (context, batch, slots)
    });
    assert_eq!(found, cases);
}

/// The cycle rule: exactly the weights that do not fit are read.
#[test]
fn half_of_a_dense_model_reads_half() {
    for (tied, percent) in [(false, 50), (true, 50), (false, 80)] {
        let options = PlanOptions { context: Some(1024), ..options() };
        let planner = Shape { tied, ..LLAMA }.planner(options);
        let ram = planner.weights() * percent / 100;
        let plan = planner.plan(ram).unwrap();
        let elsewhere = ram - plan.ledger.get(MemoryUse::Pinned);
        let lookup = planner.pieces.embedding.map_or(0, |embedding| embedding.len - embedding.row);
        let excess = planner.weights() - lookup - (ram - elsewhere);
        assert_eq!(plan.per_token.read(), excess, "{percent} %");
        // The remainder is the other reservations, and space too small for another piece.
        assert!(elsewhere < 800 << 20, "{percent} %: {:?}", plan.ledger);
        // Streamed pieces are spread over the layers.
        let pinned = |l| plan.pinned.contains(&PieceId::new(l, PieceKind::Mlp));
        let kept = (0..32).filter(|&l| pinned(l)).count();
        let runs = (1..32).filter(|&l| pinned(l) != pinned(l - 1)).count();
        assert!(runs >= kept.min(32 - kept), "{percent} %: {:?}", plan.pinned);
    }
}

#[test]
fn too_small_budget_names_one_that_works() {
    for shape in [MIXTRAL, QWEN, LLAMA, Shape { tied: true, ..QWEN }] {
        let planner = shape.planner(options());
        let least = planner.minimum();
        let plan = planner.plan(least).unwrap();
        check(&planner, least, &plan);
        flows(&shape, &plan);
        assert_eq!((plan.chunk, plan.context), (1, 512));
        assert!(least < GIB / 2, "{} MiB for {shape:?}", least >> 20);
        for ram in [0, 1, least / 2, least - 1] {
            let Err(PlanError::TooSmall { smallest, budget, .. }) = planner.plan(ram) else {
                panic!("{ram} was accepted")
            };
            assert_eq!((budget, smallest % MIB), (ram, 0));
            assert!(smallest >= least + MARGIN && smallest <= least + MARGIN + MIB);
        }
    }
}

#[test]
fn tables_of_layers_stay_on_disk() {
    let gemma = include_bytes!("../../../../../configs/gemma-4-e2b.json").as_slice();
    let qwen = include_bytes!("../../../../../configs/qwen3.8-flash-next.json").as_slice();
    let cases = [
        // layer, least bytes of its table, rows of a token, MiB of the smallest budget, GiB of all but the
        // table
        (gemma, 0, 2 * 262_144 * 35 * 256, 1, 512, 64),
        (qwen, 1, 2 * 16 * 20_000_000 * 160, 16, 1024, 512),
    ];
    for (json, layer, bytes, rows, smallest, whole) in cases {
        let spec = ModelSpec::parse(json).unwrap();
        let manifest = spec.outline(|_| Encoding::Bf16).unwrap();
        let inventory = Inventory::new(&spec, &manifest).unwrap();
        let planner = Planner::new(&spec, &inventory, &manifest, PROCESS, options()).unwrap();
        let [len, read] = planner.layer_tables().unwrap();
        assert!(len >= bytes && read < rows * (144 << 10), "{len} {read}");
        assert!(planner.minimum() < smallest * MIB, "{} MiB", planner.minimum() >> 20);
        for ram in [planner.minimum(), 2 * GIB, 4 * GIB, whole * GIB] {
            let plan = planner.plan(ram).unwrap();
            check(&planner, ram, &plan);
            assert!(!plan.pinned.contains(&PieceId::table(layer, 0)));
            assert_eq!(plan.per_token.table_rows, read);
            assert_eq!(plan.per_token.is_in_memory(), ram == whole * GIB);
            let Plan { pinned, ring, experts_stream: experts, .. } = plan;
            let plan = InfrastructurePlan { pinned, ring, experts };
            let least = Infrastructure::least_ring(&spec, &inventory, &manifest, &plan).unwrap();
            assert!(least <= ring, "the ring needs {least} bytes and has {ring}");
        }
    }
}

#[test]
fn context_is_as_requested_or_fits_the_budget() {
    let cases = [
        // context, at least, MiB above the smallest budget, expected
        (None, 0, 0, Ok(512)),
        (None, 0, 400, Ok(712)),
        (None, 0, 8300, Ok(4096)),
        (None, 0, 16_000, Ok(4096)),
        (None, 0, 100_000, Ok(24_576)),
        (None, 0, 200_000, Ok(32_768)),
        (None, 700, 0, Ok(700)),
        (None, 9000, 0, Ok(9000)),
        (None, 99_000, 0, Ok(32_768)),
        (Some(20_000), 0, 0, Ok(20_000)),
        (Some(100), 700, 0, Ok(100)),
        (Some(32_769), 0, 0, Err(PlanError::Context { asked: 32_769, most: 32_768 })),
    ];
    let (spec, manifest) = (MIXTRAL.spec().0, MIXTRAL.manifest());
    let inventory = Inventory::new(&spec, &manifest).unwrap();
    for (context, min_context, more, expected) in cases {
        let options = PlanOptions { context, min_context, ..options() };
        let planner = Planner::new(&spec, &inventory, &manifest, PROCESS, options);
        let found = planner.and_then(|planner| planner.plan(planner.minimum() + (more << 20)));
        assert_eq!(found.map(|plan| plan.context), expected, "{context:?} {min_context} {more}");
    }
}

/// Positions beyond the first few thousand have a sixteenth of what is above the smallest budget, in any
/// precision, up to the model's own maximum, and the smallest budget has nothing to do with them.
#[test]
fn default_context_follows_from_the_budget_and_the_model() {
    // Shape, precision of the KV cache, positions of the model, GiB above the smallest budget, context.
    #[rustfmt::skip]
    let cases = [
        (MIXTRAL, KvPrecision::F32, 32_768, [0, 8, 32, 128], [512, 4096, 7680, 32_256]),
        (MIXTRAL, KvPrecision::Bf16, 32_768, [0, 8, 32, 128], [512, 4096, 15_872, 32_768]),
        (MIXTRAL, KvPrecision::Q8, 32_768, [0, 8, 32, 128], [512, 7168, 30_208, 32_768]),
        (MIXTRAL, KvPrecision::F32, 2048, [0, 8, 32, 128], [512, 2048, 2048, 2048]),
        (QWEN, KvPrecision::F32, 1 << 20, [0, 8, 32, 128], [512, 4096, 10_752, 43_008]),
        (LLAMA, KvPrecision::Q8, 131_072, [0, 2, 8, 32], [512, 4096, 7168, 30_208]),
    ];
    let found = cases.map(|(shape, kv, most, more, _)| {
        let (mut spec, manifest) = (shape.spec().0, shape.manifest());
        let inventory = Inventory::new(&spec, &manifest).unwrap();
        let mut planner = |most, context| {
            spec.context = most;
            let options = PlanOptions { kv, context, ..options() };
            Planner::new(&spec, &inventory, &manifest, PROCESS, options).unwrap()
        };
        // As one that ends where the default did before.
        let (short, long) = (planner(most.min(CONTEXT), None), planner(most, None));
        assert_eq!(short.minimum(), long.minimum());
        let contexts = more.map(|more| {
            let ram = long.minimum() + more * GIB;
            let plan = long.plan(ram).unwrap();
            check(&long, ram, &plan);
            let before = short.plan(ram).unwrap();
            assert!(plan.context == before.context || before.context == CONTEXT);
            let used = plan.ledger.get(MemoryUse::KvCache);
            assert!(plan.context <= CONTEXT || used <= more * GIB / LONG_KV_SHARE);
            // As one that is asked for, which takes less above it.
            let asked = planner(most, Some(plan.context)).plan(ram).unwrap();
            assert_eq!((asked.context, asked.sequences), (plan.context, plan.sequences));
            plan.context
        });
        (shape, kv, most, more, contexts)
    });
    assert_eq!(found, cases);
}

/// No budget has to have memory for structured output; the one that is named has it.
#[test]
fn budget_named_for_structured_output_has_their_memory() {
    let structured = 217 * MIB;
    for shape in [QWEN, LLAMA, INFLATED] {
        let planner = shape.planner(PlanOptions { structured, ..options() });
        let least = planner.minimum();
        assert_eq!(least, shape.planner(options()).minimum());
        let plan = planner.plan(least).unwrap();
        assert_eq!(plan.ledger.get(MemoryUse::Structured), 0);
        for bytes in [1, 21 * MIB, 93 * MIB, structured] {
            let named = plan.ram_for_structured(bytes);
            let of = |ram| {
                let plan = planner.plan(ram).unwrap();
                check(&planner, ram, &plan);
                plan.ledger.get(MemoryUse::Structured)
            };
            assert!(of(named) >= bytes.min(structured), "{bytes} bytes in {named}");
            // The rest is for the next start of the process, and for whole MiB.
            assert!(named - least < 2 * bytes + MARGIN + 2 * MIB, "{bytes} bytes in {named}");
        }
    }
    // While no text has one, experts have it: of 9.4 MB each.
    let planner = QWEN.planner(PlanOptions { structured, ..options() });
    let plan = planner.plan(6 * GIB).unwrap();
    assert_eq!(plan.ledger.get(MemoryUse::Structured), structured);
    assert_eq!(plan.structured_lent.iter().map(|class| class.count).sum::<usize>(), 24);
}

#[test]
fn lower_budget_takes_only_slots() {
    let planner = QWEN.planner(options());
    let plan = planner.plan(8 * GIB).unwrap();
    for ram in [8 * GIB, 7 * GIB, 5 * GIB] {
        let less = plan.shrink(ram).unwrap();
        check(&planner, ram, &less);
        assert_eq!((&less.pinned, less.ring, less.chunk), (&plan.pinned, plan.ring, plan.chunk));
        assert!(less.ledger.get(MemoryUse::Spare) < plan.ledger.get(MemoryUse::Spare) + (10 << 20));
    }
    assert!(matches!(plan.shrink(GIB), Err(PlanError::TooSmall { .. })));
}

fn shapes() -> impl Strategy<Value = Shape> {
    let moe = (1usize..6, 1usize..9, any::<bool>(), 1usize..5, 1usize..20, 1usize..12);
    moe.prop_map(|(layers, hidden, tied, kv, width, experts)| Shape {
        layers,
        hidden: 64 * hidden,
        vocab: 512 * width,
        heads: 2 * kv,
        kv_heads: kv,
        width: 32 * width,
        experts: if experts < 4 { 0 } else { experts },
        top_k: 1 + experts / 4,
        tied,
    })
}

proptest! {
    /// No plan exceeds its budget, and more memory never means more reads, a lower estimate, a
    /// shorter chunk or a shorter context.
    #[test]
    fn more_memory_never_reads_more(
        shape in shapes(),
        steps in prop::collection::vec(0u64..(24 << 20), 1..24),
        batch in 1usize..4,
        all_logits: bool,
        structured in 0u64..96 << 20,
        speeds in (1e8f64..1e10, 5e9f64..5e11),
    ) {
        let planner = shape.planner(PlanOptions { batch, all_logits, structured, ..options() });
        let pace = |plan: &Plan| plan.per_token.pace(speeds.0, speeds.1);
        let mut ram = planner.minimum();
        let mut before = planner.plan(ram).unwrap();
        check(&planner, ram, &before);
        for step in steps {
            ram += step;
            let plan = planner.plan(ram).unwrap();
            check(&planner, ram, &plan);
            flows(&shape, &plan);
            prop_assert!(plan.per_token.read() <= before.per_token.read(), "{plan:?} after {before:?}");
            prop_assert!(pace(&plan) >= pace(&before), "{plan:?} after {before:?}");
            prop_assert!(plan.chunk >= before.chunk && plan.context >= before.context);
            let structured = [&before, &plan].map(|plan| plan.ledger.get(MemoryUse::Structured));
            prop_assert!(structured.is_sorted());
            before = plan;
        }
    }
}
