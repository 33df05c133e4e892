//! The kernel alone: the matrices of a pass, streamed without anything in between.

use std::collections::HashMap;
use std::sync::Mutex;

use sws_format::{PieceId, PieceKind};
use sws_kernels::{OutputColumns, PackedInput, ThreadScratch, Tier, matmul_rows};
use sws_model::{ModelSpec, ReadStep, Role, TensorSpec, Weights};

use super::watch::Block;

/// A matrix product of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) block: Block,
    piece: PieceId,
    role: Role,
    tokens: usize,
}

/// Routing of a pass: for each layer, its experts and the number of tokens of each.
pub(super) type Routes = Vec<Vec<(u32, usize)>>;

/// The products of a pass of `tokens` tokens, in their order.
pub(super) fn products(spec: &ModelSpec, routes: &Routes, tokens: usize) -> Vec<Product> {
    let mut all = Vec::new();
    let mut add = |block, piece, role, tokens| all.push(Product { block, piece, role, tokens });
    for layer in 0..spec.layers.len() {
        let routes = routes.get(layer).map_or(&[][..], Vec::as_slice);
        for read in spec.reads(layer) {
            match read {
                ReadStep::Tensor(kind, TensorSpec { role, .. }) if role.is_matrix() => {
                    let block = match kind {
                        PieceKind::Attention | PieceKind::Router => Block::Attention,
                        _ => Block::Experts,
                    };
                    add(block, PieceId::new(layer as u32, kind), role, tokens);
                }
                ReadStep::Tensor(..) => {}
                ReadStep::Experts { tensors, .. } => {
                    for &(expert, rows) in routes {
                        let piece = PieceId::expert(layer as u32, expert);
                        for TensorSpec { role, .. } in &tensors {
                            add(Block::Experts, piece, *role, rows);
                        }
                    }
                }
            }
        }
    }
    let (head, TensorSpec { role, .. }) = spec.head();
    add(Block::Head, head, role, 1);
    all
}

/// Runs products on every thread of the pool. Each thread has its share of the rows of every
/// product, so no thread waits for another before the end.
pub(super) struct Kernel {
    tier: Tier,
    inputs: HashMap<(usize, usize), PackedInput>,
    threads: Vec<Mutex<(Vec<f32>, ThreadScratch)>>,
}

impl Kernel {
    pub(super) fn new(tier: Tier) -> Kernel {
        let threads = (0..rayon::current_num_threads()).map(|_| Mutex::default()).collect();
        Kernel { tier, inputs: HashMap::new(), threads }
    }

    /// Packs the activations in advance, so that `run` need not.
    pub(super) fn prepare(&mut self, weights: &dyn Weights, products: &[Product]) {
        for &Product { piece, role, tokens, .. } in products {
            let cols = weights.matrix(piece, role).map_or(0, |matrix| matrix.cols());
            self.inputs.entry((tokens, cols)).or_insert_with(|| {
                let x: Vec<f32> = (0..tokens * cols).map(|i| (i % 61) as f32 - 30.0).collect();
                let mut input = PackedInput::new();
                input.pack(self.tier, &x, tokens, cols);
                input
            });
        }
    }

    /// Bytes of weights that the products read.
    pub(super) fn bytes(&self, weights: &dyn Weights, products: &[Product]) -> usize {
        let mut bytes = 0;
        for product in products {
            if let Some(matrix) = weights.matrix(product.piece, product.role) {
                bytes += matrix.bytes();
            }
        }
        bytes
    }

    /// Multiplications and additions of the products of a prompt, and of those that llama.cpp does
    /// too: in its last layer it computes experts for the last token only.
    pub(super) fn operations(&self, weights: &dyn Weights, products: &[Product]) -> (f64, f64) {
        let last =
            products.iter().rev().find(|p| p.block == Block::Experts).map(|p| p.piece.layer());
        let mut all = 0.0;
        let mut left_out = 0.0;
        for product in products {
            let Some(matrix) = weights.matrix(product.piece, product.role) else { continue };
            let work = 2.0 * (matrix.row_count() * matrix.cols() * product.tokens) as f64;
            all += work;
            if product.block == Block::Experts && Some(product.piece.layer()) == last {
                left_out += work;
            }
        }
        (all, all - left_out)
    }

    pub(super) fn run(&self, weights: &dyn Weights, products: &[Product]) {
        let jobs: Vec<_> = products
            .iter()
            .filter_map(|p| {
                let matrix = weights.matrix(p.piece, p.role)?;
                Some((matrix, &self.inputs[&(p.tokens, matrix.cols())]))
            })
            .collect();
        let threads = self.threads.len();
        rayon::broadcast(|context| {
            let mut own = self.threads[context.index()].lock().expect("no holder panics");
            let (y, scratch) = &mut *own;
            for (matrix, input) in &jobs {
                let rows = matrix.row_count();
                let share =
                    rows * context.index() / threads..rows * (context.index() + 1) / threads;
                let rows = share.len();
                let tokens = input.tokens();
                if y.len() < rows * tokens {
                    y.resize(rows * tokens, 0.0);
                }
                let out = OutputColumns::new(&mut y[..rows * tokens], tokens, rows);
                matmul_rows(self.tier, &matrix.rows(share), input, out, scratch);
            }
            std::hint::black_box(y);
        });
    }
}
