//! Small products in every encoding, for comparing one change to a kernel with the next: the
//! weights stay in the cache, so arithmetic shows and memory does not. `sws-bench kernels` is the
//! table for weights far larger than the cache.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sws_benchmarks::kernels::weights::{Encoded, random_weights, widen};
use sws_kernels::{Encoding, MatmulScratch, Tier, matmul};

const ROWS: usize = 256;
const COLS: usize = 2048;

fn kernels(criterion: &mut Criterion) {
    let tier = Tier::from_env().expect("SWS_TIER names a tier of this CPU");
    let weights = random_weights(ROWS, COLS);
    for tokens in [1, 8, 64] {
        let mut group = criterion.benchmark_group(format!("matmul/{tier}/{tokens}"));
        group.throughput(Throughput::Elements((ROWS * COLS * tokens) as u64));
        let x = widen(&random_weights(tokens, COLS));
        let mut y = vec![0f32; tokens * ROWS];
        let mut scratch = MatmulScratch::default();
        for encoding in Encoding::ALL {
            let encoded = Encoded::new(encoding, (ROWS, COLS), &weights).expect("finite weights");
            let matrix = encoded.matrix().expect("encoded just now");
            group.bench_function(BenchmarkId::from_parameter(encoding), |bencher| {
                bencher.iter(|| matmul(tier, &matrix, &x, tokens, &mut y, &mut scratch));
            });
        }
    }
}

criterion_group!(benches, kernels);
criterion_main!(benches);
