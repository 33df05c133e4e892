//! Products that are divided among threads.

use sws_kernels::{
    Encoding, MatmulJob, Matrix, OutputColumns, PackedInput, ScratchPool, Tier, matmul_jobs,
};

/// Results have the same bits with more parts than threads, with matrices of several sizes, and where there is
/// nothing to multiply.
#[test]
fn parts_cover_every_row() {
    let cols = 512;
    let tokens = 3;
    let rows = [1000, 0, 7, 129, 2048];
    let number = |i: usize| ((i * 7919) % 1013) as f32 / 500.0 - 1.0;
    let bytes: Vec<u8> = (0..2048 * cols).flat_map(|i| number(i).to_le_bytes()).collect();
    let x: Vec<f32> = (0..tokens * cols).map(number).collect();
    let tier = Tier::best();
    let mut input = PackedInput::new();
    input.pack(tier, &x, tokens, cols);
    let run = |threads: usize| {
        let mut results = rows.map(|rows| vec![f32::NAN; rows * tokens]);
        let mut jobs = Vec::new();
        for (y, rows) in results.iter_mut().zip(rows) {
            let part = &bytes[..rows * cols * size_of::<f32>()];
            let matrix = Matrix::new(Encoding::F32, rows, cols, &[part]).unwrap();
            let y = OutputColumns::new(y, tokens, rows);
            jobs.push(Some(MatmulJob { matrix, x: &input, y }));
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(move || matmul_jobs(tier, threads, &jobs, &mut ScratchPool::default()));
        results.map(|y| y.into_iter().map(f32::to_bits).collect::<Vec<_>>())
    };
    let expected = run(1);
    assert!(expected.iter().flatten().all(|bits| f32::from_bits(*bits).is_finite()));
    for threads in [2, 3, 5] {
        assert!(run(threads) == expected, "{threads} threads");
    }
}
