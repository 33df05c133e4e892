use super::*;

/// A model whose passes take these milliseconds: over all texts, over one whose experts are in
/// memory, and longer by so much for the first passes of a turn.
struct Model {
    together: f64,
    alone: f64,
    more: f64,
    firsts: u32,
}

/// Milliseconds per token of many passes, the longest wait of a text in milliseconds, and tokens of
/// the texts.
fn serve(model: &Model, gap: u64, count: usize) -> (f64, f64, Vec<u32>) {
    let mut turns = Turns::new(Duration::from_millis(gap));
    let mut heard = vec![Duration::ZERO; count];
    let mut tokens = vec![0; count];
    let (mut now, mut longest, mut last) = (Duration::ZERO, Duration::ZERO, (None, 0));
    for _ in 0..100_000 {
        let texts: Vec<_> = heard.iter().copied().enumerate().collect();
        let chosen = turns.next(&texts, |_| None);
        last = (chosen, if last.0 == chosen { last.1 + 1 } else { 0 });
        let cold = chosen.is_some() && last.1 < model.firsts;
        let pass = if chosen.is_some() { model.alone } else { model.together };
        let pass = pass + if cold { model.more } else { 0.0 };
        let pass = Duration::from_secs_f64(pass / 1e3);
        now += pass;
        let ran = chosen.map_or(0..count, |text| text..text + 1);
        turns.passed(ran.len(), pass, Duration::ZERO);
        for text in ran {
            longest = longest.max(now - heard[text]);
            heard[text] = now;
            tokens[text] += 1;
        }
    }
    let all = f64::from(tokens.iter().sum::<u32>());
    (1e3 * now.as_secs_f64() / all, 1e3 * longest.as_secs_f64(), tokens)
}

#[test]
fn no_dearer_than_either_way_and_within_the_gap() {
    #[rustfmt::skip]
    let cases = [
        // everything in memory: shared passes
        (Model { together: 20.0, alone: 12.0, more: 0.0, firsts: 0 }, 10_000, 4),
        // experts from the disk: turns
        (Model { together: 70.0, alone: 10.0, more: 20.0, firsts: 8 }, 10_000, 4),
        (Model { together: 21.0, alone: 10.0, more: 20.0, firsts: 4 }, 10_000, 2),
        // turns too short to be worth it
        (Model { together: 70.0, alone: 10.0, more: 40.0, firsts: 8 }, 600, 4),
        // too slow for turns
        (Model { together: 2000.0, alone: 900.0, more: 0.0, firsts: 0 }, 10_000, 8),
        // shared passes always
        (Model { together: 70.0, alone: 1.0, more: 0.0, firsts: 0 }, 0, 4),
    ];
    for (at, (model, gap, count)) in cases.into_iter().enumerate() {
        let (cost, longest, tokens) = serve(&model, gap, count);
        // Full turns that the gap has room for.
        let share = gap as f64 / count as f64;
        let cold = f64::from(model.firsts) * (model.alone + model.more);
        let passes = (f64::from(model.firsts) + (share - cold).max(0.0) / model.alone)
            .floor()
            .min(f64::from(PASSES));
        let turns = match passes >= f64::from(LEAST) && share > 0.0 {
            true => model.alone + model.more * f64::from(model.firsts) / passes,
            false => f64::INFINITY,
        };
        let together = model.together / count as f64;
        let best = turns.min(together);
        assert!(
            cost <= 1.03 * best,
            "{at}: {cost} ms a token, {together} together, {turns} in turns"
        );
        let bound = (gap as f64).max(model.together);
        assert!(longest <= bound, "{at}: a wait of {longest} ms");
        let (least, most) = (tokens.iter().min().unwrap(), tokens.iter().max().unwrap());
        assert!(most - least <= PASSES, "{at}: {tokens:?}");
    }
}

#[test]
fn texts_that_come_and_go_have_their_turns() {
    let second = Duration::from_secs(1);
    let mut turns = Turns::new(1000 * second);
    let heard = |numbers: &[usize]| -> Vec<_> {
        numbers.iter().map(|&number| (number, second * number as u32)).collect()
    };
    // A round that fills the memory, and one that is measured.
    for _ in 0..2 * PASSES {
        assert_eq!(turns.next(&heard(&[1, 2, 3]), |_| None), None);
        turns.passed(3, 9 * second, second);
    }
    assert_eq!(turns.next(&heard(&[1, 2, 3]), |_| None), Some(1));
    turns.passed(1, second, second);
    // The text whose turn it is has ended: another count of texts, whose costs are not known.
    assert_eq!(turns.next(&heard(&[2, 3]), |_| None), None);
    assert_eq!(turns.next(&heard(&[3]), |_| None), None);
    assert_eq!(turns.next(&[], |_| None), None);
}

/// The share of the next passes that are turns. A pass over all texts computes for 2 ms, over one for
/// 1.5 ms, and a token waits for so many, together and in turns.
fn share_in_turns(
    turns: &mut Turns,
    texts: usize,
    waits: [f64; 2],
    expected: Option<ExpectedReads>,
    passes: u32,
) -> f64 {
    let texts: Vec<_> = (0..texts).map(|text| (text, Duration::ZERO)).collect();
    let mut of_one = 0;
    for _ in 0..passes {
        let chosen = turns.next(&texts, |_| expected);
        let (tokens, computing, wait) = match chosen {
            None => (texts.len(), 2.0, waits[0]),
            Some(_) => (1, 1.5, waits[1]),
        };
        of_one += u32::from(chosen.is_some());
        let waited = Duration::from_secs_f64(wait * tokens as f64 / 1e3);
        turns.passed(tokens, Duration::from_secs_f64(computing / 1e3) + waited, waited);
    }
    f64::from(of_one) / f64::from(passes)
}

#[test]
fn a_way_that_reads_more_by_forecast_is_not_tried_soon() {
    let forecast = |together, in_turns| Some(ExpectedReads { together, in_turns });
    #[rustfmt::skip]
    let cases = [
        // waits of a token together and in turns, forecast, rounds' passes, and turns among them
        ([1.0, 4.0], forecast(10.0, 40.0), 20, 0.0..=0.0),
        // without a forecast, turns are tried for a round
        ([1.0, 4.0], None, 20, 0.2..=0.2),
        ([4.0, 0.4], forecast(40.0, 4.0), 20, 1.0..=1.0),
        // where a forecast is wrong, what is measured decides
        ([4.0, 0.4], forecast(10.0, 12.0), 100, 0.8..=0.9),
        ([1.0, 4.0], forecast(40.0, 4.0), 20, 0.2..=0.2),
    ];
    for (at, (waits, expected, passes, turned)) in cases.into_iter().enumerate() {
        let mut turns = Turns::new(Duration::from_secs(100));
        assert_eq!(share_in_turns(&mut turns, 4, waits, expected, 2 * PASSES), 0.0, "{at}");
        let share = share_in_turns(&mut turns, 4, waits, expected, passes * PASSES);
        assert!(turned.contains(&share), "{at}: {share}");
    }
}

#[test]
fn what_was_measured_of_others_is_carried_over_by_the_forecast() {
    let learned = || {
        let mut turns = Turns::new(Duration::from_secs(100));
        let expected = Some(ExpectedReads { together: 40.0, in_turns: 4.0 });
        let share = share_in_turns(&mut turns, 4, [4.0, 0.4], expected, 10 * PASSES);
        assert_eq!(share, 0.8);
        turns
    };
    // Three texts like those before, and three that choose the same experts.
    let [apart, alike] = [[40.0, 4.0], [4.0, 40.0]].map(|[together, in_turns]| {
        let waits = [together / 10.0, in_turns / 10.0];
        let expected = Some(ExpectedReads { together, in_turns });
        share_in_turns(&mut learned(), 3, waits, expected, 10 * PASSES)
    });
    assert_eq!((apart, alike), (1.0, 0.0));
    // Without a forecast they are as those before.
    assert_eq!(share_in_turns(&mut learned(), 3, [0.4, 4.0], None, 3 * PASSES), 1.0);
}
