use super::*;

/// A model and a source of draft tokens: milliseconds of a plain token and of one on stand-ins, the power
/// of the number of tokens by which a pass takes longer, and the share of draft tokens that are right.
#[derive(Clone, Copy, Debug)]
struct Case {
    plain: f64,
    drafted: f64,
    growth: f64,
    right: f64,
    /// Milliseconds of reading all experts, which no pass exceeds.
    sweep: f64,
}

/// Texts of each case.
const TEXTS: u64 = 40;
/// No text has less than this share of the speed that it has without draft tokens.
const WORST: f64 = 0.94;

/// The speed-up of so many tokens with draft tokens, by true times that scatter by `noise`.
fn speed_up(case: Case, tokens: usize, noise: f64, text: u64) -> f64 {
    let mut seed = (text + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 11) as f64 / (1u64 << 53) as f64
    };
    let (mut value, mut share) = (DraftValue::default(), Share::default());
    let (mut time, mut made, mut open) = (0.0, 0, 0usize);
    while made < tokens {
        let mut scatter = |time: f64| time / 1e3 * (1.0 + noise * (2.0 * random() - 1.0));
        let offer = DraftOffer { share, most: MOST, drafts: case.drafted > 0.0 };
        match value.choose(&[offer]) {
            Some((0, proposed)) => {
                let drafting = scatter(case.drafted * proposed as f64);
                let several = case.plain * ((proposed + 1) as f64).powf(case.growth);
                let whole = case.sweep + case.drafted * (proposed + 1) as f64;
                let verifying = scatter(several.min(whole));
                let right = (0..proposed).take_while(|_| random() < case.right).count();
                for n in 0..proposed.min(right + 1) {
                    share.came(n < right);
                }
                value.round((proposed, right + 1), [drafting, verifying]);
                time += drafting + verifying;
                made += right + 1;
                open = 0;
            }
            chosen => {
                assert_eq!(chosen, None, "there is one offer");
                let tries = if open == 0 && case.drafted > 0.0 { value.tries(share) } else { 0 };
                if tries > 0 {
                    let seconds = scatter(case.drafted * tries as f64);
                    value.drafted(tries, seconds);
                    time += seconds;
                    open = tries;
                }
                let seconds = scatter(case.plain);
                value.plain(seconds);
                time += seconds;
                made += 1;
                if open > 0 || case.drafted == 0.0 {
                    let right = random() < case.right;
                    share.came(right);
                    open = if right { open.saturating_sub(1) } else { 0 };
                }
            }
        }
    }
    made as f64 * case.plain / 1e3 / time
}

#[test]
fn draft_tokens_pay_or_cost_next_to_nothing() {
    let swept =
        |plain, drafted, growth, right, sweep| Case { plain, drafted, growth, right, sweep };
    let case = |plain, drafted, growth, right| swept(plain, drafted, growth, right, f64::INFINITY);
    // Tokens, and the speed-up that texts have on average, at least.
    #[rustfmt::skip]
    let cases = [
        // Mixtral 8x7B at a quarter of its bytes: a disk, large experts, good stand-ins.
        (case(2300.0, 170.0, 0.45, 0.97), 1000, 2.6),
        (case(2300.0, 170.0, 0.45, 0.95), 256, 2.1),
        (case(2300.0, 170.0, 0.45, 0.85), 1000, 1.45),
        // Few experts, of which a pass over many tokens reads all; now and then most of those tokens are
        // wrong.
        (swept(370.0, 25.0, 0.85, 0.97, 1500.0), 150, 1.75),
        (swept(370.0, 25.0, 0.85, 0.97, 1500.0), 1000, 2.0),
        (swept(370.0, 25.0, 0.85, 0.8, 1500.0), 1000, 0.98),
        (swept(370.0, 25.0, 0.85, 0.5, 1500.0), 256, 0.98),
        // All stand-ins and two slots: 32 tokens take hardly longer than 16, and 64 than 32.
        (swept(830.0, 28.0, 0.75, 0.967, 3100.0), 400, 3.0),
        // The same with nested experts, of which a pass reads what the stand-ins lack.
        (swept(830.0, 26.0, 0.75, 0.957, 2000.0), 400, 3.4),
        // Large experts with bad stand-ins.
        (case(2300.0, 170.0, 0.45, 0.5), 1000, 0.98),
        (case(2300.0, 170.0, 0.45, 0.0), 256, 0.98),
        // Fine-grained experts.
        (case(50.0, 8.0, 0.85, 0.95), 1000, 0.98),
        (case(50.0, 8.0, 0.85, 0.8), 1000, 0.98),
        // Everything in memory: stand-ins take half of a token's time, or all of it.
        (case(20.0, 10.0, 0.9, 0.98), 1000, 0.98),
        (case(20.0, 20.0, 1.0, 0.9), 256, 0.98),
        // Lookups, which cost nothing: a text that copies, and one that does not.
        (case(50.0, 0.0, 0.8, 0.98), 1000, 1.3),
        (case(50.0, 0.0, 0.8, 0.6), 1000, 0.98),
        (case(50.0, 0.0, 1.0, 0.9), 1000, 0.98),
    ];
    for (case, tokens, least) in cases {
        for noise in [0.0, 0.3] {
            let all: Vec<f64> =
                (0..TEXTS).map(|text| speed_up(case, tokens, noise, text)).collect();
            let mean = all.iter().sum::<f64>() / TEXTS as f64;
            let worst = all.iter().copied().fold(f64::INFINITY, f64::min);
            let told = format!("{mean:.3}, worst {worst:.3}, for {case:?}, noise {noise}");
            assert!(mean >= least && worst >= WORST, "{told}");
        }
    }
}

#[test]
fn a_slow_first_token_on_stand_ins_is_measured_again() {
    let mut value = DraftValue::default();
    (0..LEARNING).for_each(|_| value.plain(1.0));
    assert_eq!(value.tries(Share::default()), 1);
    value.drafted(1, 1.4);
    assert_eq!(value.tries(Share::default()), 1);
    value.drafted(1, 0.01);
    (0..400).for_each(|_| value.plain(1.0));
    assert!(value.drafted.value < 0.011);
    assert_eq!(value.tries(Share::default()), TRIED);
    // The second may be slow instead.
    let mut value = DraftValue::default();
    (0..LEARNING).for_each(|_| value.plain(1.0));
    value.drafted(1, 0.01);
    value.drafted(TRIED, 1.4 * TRIED as f64);
    assert!(value.drafted.value < 0.011);
    // A source that is slow again is measured once in a long time.
    let mut slow = DraftValue::default();
    (0..LEARNING).for_each(|_| slow.plain(1.0));
    for _ in 0..FIRST {
        assert_eq!(slow.tries(Share::default()), 1);
        slow.drafted(1, 0.9);
    }
    let tried = (0..2500).filter(|_| {
        let tries = slow.tries(Share::default());
        if tries > 0 {
            slow.drafted(tries, 0.9);
        }
        slow.plain(1.0);
        tries > 0
    });
    assert_eq!(tried.count(), 2);
}

#[test]
fn a_source_that_becomes_bad_is_left() {
    let mut value = DraftValue::default();
    let mut share = Share::default();
    (0..20).for_each(|_| value.plain(1.0));
    (0..40).for_each(|_| share.came(true));
    let offer = |share| [DraftOffer { share, most: MOST, drafts: false }];
    let mut rounds = 0;
    // Passes take as long as ever, and nothing is right any more.
    while value.choose(&offer(share)).is_some() {
        value.round((4, 1), [0.0, 2.0]);
        rounds += 1;
    }
    // Each loses a plain token, and three may be lost.
    assert!(rounds <= 4, "{rounds} rounds that yield nothing new");
}
