use proptest::prelude::*;

use super::*;

/// A safetensors file of a header and data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend(data);
    bytes
}

proptest! {
    #[test]
    fn written_trace_reads_back(
        layers in 1usize..4,
        experts in prop_oneof![2usize..9, Just(300)],
        passes in prop::collection::vec((1usize..5, any::<bool>(), any::<bool>()), 1..12),
        seed in any::<u32>(),
    ) {
        let mut trace = Trace::new(HistoryShape { layers, experts, top_k: 2 }).unwrap();
        let mut number = seed;
        let mut next = || { number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223); number >> 8 };
        for (tokens, both, end) in passes {
            let ids: Vec<u32> = (0..tokens).map(|_| next()).collect();
            let per_token = if both { 2 } else { 1 };
            let routes: Vec<Vec<u32>> = (0..layers)
                .map(|_| (0..tokens * per_token).map(|_| next() % experts as u32).collect())
                .collect();
            trace.push(&ids, &routes).unwrap();
            if end {
                trace.end_sequence();
            }
        }
        trace.end_sequence();
        let same = Trace::read(&trace.write());
        prop_assert_eq!(same.unwrap(), trace);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..400, flips in prop::collection::vec((any::<usize>(), any::<u8>()), 0..8)) {
        let _ = Trace::read(&bytes);
        let mut trace = Trace::new(HistoryShape { layers: 2, experts: 4, top_k: 2 }).unwrap();
        trace.push(&[1, 2], &[[0, 1, 2, 3], [3, 2, 1, 0]]).unwrap();
        for mut whole in [trace.write(), CSV.as_bytes().to_vec()] {
            for &(at, with) in &flips {
                let len = whole.len();
                whole[at % len] = with;
            }
            whole.truncate(whole.len() - cut.min(whole.len()));
            if let Ok(trace) = Trace::read(&whole) {
                let HistoryShape { layers, experts, .. } = trace.shape();
                prop_assert!(layers * experts <= MAX_EXPERTS);
                for token in 0..trace.token_count() {
                    prop_assert!(trace.experts(token, layers - 1).iter().all(|&e| usize::from(e) < experts));
                }
            }
        }
    }
}

const CSV: &str = "\
# model=x n_expert=4 n_expert_used=2
turn,phase,step,layer,slot,expert,weight
0,0,0,3,0,1,.5
0,0,0,3,1,2,.5
0,0,1,3,1,3,.5
0,0,1,3,0,0,.5
0,0,1,7,0,3,.5
0,0,1,7,1,1,.5

0,1,2,3,0,1,.5
0,1,2,3,1,0,.5
0,1,2,7,0,0,.5
0,1,2,7,1,1,.5
1,1,0,3,0,1,.5
1,1,0,3,1,0,.5
1,1,0,7,0,0,.5
1,1,0,7,1,1,.5
";

#[test]
fn csv_and_forward_routes_are_read() {
    let trace = Trace::read(CSV.as_bytes()).unwrap();
    assert_eq!(trace.shape(), HistoryShape { layers: 2, experts: 4, top_k: 2 });
    assert_eq!(trace.sequences().collect::<Vec<_>>(), [0..3, 3..4]);
    assert_eq!(trace.passes(0..4).collect::<Vec<_>>(), [0..2, 2..3, 3..4]);
    assert_eq!(trace.experts(1, 0), [0, 3]);
    assert_eq!(trace.experts(0, 1), [3, 1], "the last layer's experts of the prompt's last token");
    assert_eq!(trace.experts(2, 1), [0, 1]);

    // The layout of `sws forward --routes`: layers first, one sequence.
    let header = r#"{"logits":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},
        "routes":{"dtype":"U32","shape":[2,2,1],"data_offsets":[8,24]}}"#;
    let data: Vec<u8> =
        [0u32; 2].iter().chain(&[1u32, 2, 3, 4]).flat_map(|n| n.to_le_bytes()).collect();
    let trace = Trace::read(&file(header, &data)).unwrap();
    assert_eq!(trace.shape(), HistoryShape { layers: 2, experts: 5, top_k: 1 });
    assert_eq!((trace.experts(0, 1), trace.experts(1, 0)), (&[3u16][..], &[2u16][..]));
    assert_eq!(trace.sequences().collect::<Vec<_>>(), vec![0..2]);
}

#[test]
fn bad_traces_are_refused_with_one_sentence() {
    let ids = |facts: &str, rest: &str, data: &[u8]| {
        let ids = r#""ids":{"dtype":"U8","shape":[2,1,1],"data_offsets":[0,2]}"#;
        file(&format!("{{{facts}{ids}{rest}}}"), data)
    };
    let facts = |experts: &str| format!(r#""__metadata__":{{"experts":"{experts}"}},"#);
    let lens = |n: usize| {
        format!(r#","lens":{{"dtype":"I32","shape":[{n}],"data_offsets":[2,{}]}}"#, 2 + 4 * n)
    };
    let csv = |line: &str| format!("turn,phase,step,layer,slot,expert\n{line}\n").into_bytes();
    #[rustfmt::skip]
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "is not a trace"),
        (b"hello, world, this is not a trace".to_vec(), "is not a trace"),
        (file("{}", &[]), "is not a trace"),
        (vec![255; 16], "is not a trace"),
        (file(r#"{"ids":{"dtype":"U8","shape":[9,1,1],"data_offsets":[0,2]}}"#, &[0, 1]), "is not a safetensors file"),
        (file(r#"{"ids":{"dtype":"F32","shape":[1,1,1],"data_offsets":[0,4]}}"#, &[0; 4]), "has `ids` that is not three-dimensional"),
        (file(r#"{"ids":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#, &[0; 2]), "has `ids` that is not three-dimensional"),
        (file(r#"{"ids":{"dtype":"U8","shape":[0,1,1],"data_offsets":[0,0]}}"#, &[]), "has no routes"),
        (file(r#"{"ids":{"dtype":"U8","shape":[1,5000,1],"data_offsets":[0,5000]}}"#, &[0; 5000]), "has 5000 layers"),
        (file(r#"{"routes":{"dtype":"U32","shape":[1,1,1],"data_offsets":[0,4]}}"#, &[255; 4]), "has `routes` that is not"),
        (ids(&facts("1"), "", &[0, 1]), "names expert 1 of a model that has 1"),
        (ids(&facts("9999999999"), "", &[0, 1]), "has 1 layers of 9999999999 experts"),
        (ids(&facts("many"), "", &[0, 1]), "says in its metadata that `experts` is `many`"),
        (ids("", &lens(1), &[0, 1, 3, 0, 0, 0]), "has sequences that do not add up to its 2 tokens"),
        (ids("", &lens(1), &[0, 1, 255, 255, 255, 255]), "has `lens` that is not a row of numbers"),
        (csv(""), "has no routes"),
        (csv("0,0,0,0,0,x"), "has a line 2"),
        (csv("0,0,0,0,0"), "has a line 2"),
        (csv("0,0,0,0,0,70000"), "has 1 layers of 70001 experts"),
        (csv("0,0,0,0,0,1\n0,0,0,1,0,1\n0,0,1,0,0,1"), "has 1 experts for step 1 of turn 0 where other steps have 2"),
        (b"turn,step\n".to_vec(), "is not a trace"),
    ];
    for (bytes, expected) in cases {
        let error = Trace::read(&bytes).expect_err(expected).to_string();
        assert!(error.starts_with(expected), "{error}\nshould begin: {expected}");
        assert!(!error.contains('\n') && !error.ends_with('.'), "{error}");
    }
}

#[test]
fn routes_that_do_not_fit_are_refused() {
    /// Tokens, the experts of each layer, and the expected result.
    type Case<'a> = (&'a [u32], &'a [&'a [u32]], bool);
    let mut trace = Trace::new(HistoryShape { layers: 1, experts: 4, top_k: 2 }).unwrap();
    #[rustfmt::skip]
    let cases: [Case<'_>; 7] = [
        (&[1], &[&[0, 1]], true),
        (&[1], &[&[0]], true),
        (&[1], &[&[0, 4]], false), // no such expert
        (&[1], &[&[0, 1, 2]], false), // too many
        (&[1, 2], &[&[0, 1, 2]], false), // not the same for each token
        (&[1], &[&[0, 1], &[0, 1]], false), // another layer
        (&[1], &[&[]], false),
    ];
    for (tokens, layers, fits) in cases {
        assert_eq!(trace.push(tokens, layers).is_ok(), fits, "{layers:?}");
    }
    assert_eq!(trace.token_count(), 2);
    assert_eq!(trace.experts(1, 0), [0, 0], "padded");
}
