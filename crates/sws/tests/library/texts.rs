//! Tests of the library as a program uses it: texts, conversations, cancellation, threads, errors.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sws::{
    Batch, BatchRequest, Cancel, End, Error, Event, Generated, GenerationOptions, LoadedModel,
    Model, Needs, Observer, Options, Prompt, Request, ShardReader, Threads,
};
use sws_format::{Pass, open_checkpoint};
use sws_model::{Routed, SourceError};
use sws_shard::{ShardOptions, shard};
use sws_store::ReaderKind;
use sws_testing::goldens;
use sws_text::Position;

const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }} {{ m.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}a {% endif %}";

fn tales() -> Model {
    Model::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shards/tales-moe")).unwrap()
}

/// Loads the model within the minimum budget, so that everything streams. No statistics are kept
/// for other tests.
fn streamed(model: &Model) -> LoadedModel {
    load(model, |options| options.ram = "min".parse().unwrap())
}

fn load(model: &Model, change: impl FnOnce(&mut Options)) -> LoadedModel {
    let mut options = Options::default();
    options.streaming.warm_start = false;
    change(&mut options);
    model.with(options).load().unwrap()
}

fn wolf() -> Request {
    Request::from("The wolf").seed(7).temperature(0.8).max_new_tokens(12)
}

/// Generates a text to its end and checks that its pieces add up to the whole.
fn text(model: &mut LoadedModel, request: Request) -> Generated {
    let mut generate = model.generate(request).unwrap();
    let pieces: Vec<_> = generate.by_ref().map(Result::unwrap).collect();
    let made = generate.finish();
    assert_eq!(pieces.iter().map(|piece| piece.text.as_str()).collect::<String>(), made.text);
    let tokens: Vec<u32> = pieces.iter().filter_map(|piece| piece.token).collect();
    assert_eq!(tokens, made.tokens);
    made
}

#[test]
fn same_text_streamed_and_in_memory() {
    let mut model = load(&tales(), |options| options.resident = true);
    let made = text(&mut model, wolf());
    assert_eq!((made.tokens.len(), made.end), (12, End::Length));
    assert_eq!((made.prompt.tokens > 0, made.generation.tokens), (true, 11));
    assert!(model.plan().is_none());
    let metrics = model.metrics(&made);
    assert_eq!((metrics.ram_bytes, metrics.reader), (None, "direct"));

    let mut model = streamed(&tales());
    let again = text(&mut model, wolf());
    assert_eq!((&again.tokens, &again.text), (&made.tokens, &made.text));
    assert!(model.plan().is_some());
    assert!(
        model.metrics(&again).cost.unwrap().generation.bytes_per_token.values().sum::<f64>() > 0.0
    );
}

#[test]
fn every_end_has_its_reason() {
    let mut model =
        load(&tales(), |options| (options.resident, options.context) = (true, Some(16)));
    let made = text(&mut model, wolf().max_new_tokens(1000));
    assert_eq!(made.end, End::Context);
    // One of the generated words serves as a stop string.
    let words: Vec<&str> = made.text.split(' ').filter(|word| word.len() > 2).collect();
    let stopped = text(&mut model, wolf().stop(words[1]));
    assert_eq!(stopped.end, End::StopString);
    assert!(made.text.starts_with(&stopped.text) && !stopped.text.contains(words[1]));
    let none = text(&mut model, wolf().max_new_tokens(0));
    assert_eq!((none.end, none.tokens.len()), (End::Length, 0));
}

/// An abandoned text leaves no trace in the next one, wherever it was dropped.
#[test]
fn abandoned_text_leaves_the_model_unchanged() {
    let mut model = streamed(&tales());
    let alone = text(&mut model, wolf()).text;
    for pieces in [0, 1, 5] {
        let other = Request::from("Alice said").seed(3);
        let mut generate = model.generate(other).unwrap();
        assert_eq!(generate.by_ref().take(pieces).filter(Result::is_ok).count(), pieces);
        drop(generate);
        assert_eq!(text(&mut model, wolf()).text, alone, "after {pieces} pieces");
    }
}

/// Requests with their own options, one of which cannot be continued.
fn requests() -> Vec<Request> {
    let context = tales().spec().context;
    let long = Request::from(vec![5; context + 1]);
    let stopped = wolf().max_new_tokens(60).stop(",");
    let none = Request::from("A cat").max_new_tokens(0);
    vec![wolf(), long, Request::from("Tom").seed(9).max_new_tokens(30), stopped, none, wolf()]
}

#[test]
fn texts_together_are_those_alone() {
    let mut model = streamed(&tales());
    type Text = (Vec<u32>, String, End);
    let all = |made: Generated| -> Text { (made.tokens, made.text, made.end) };
    let alone = |request| -> Option<Text> {
        let mut text = model.generate(request).ok()?;
        text.by_ref().for_each(|piece| drop(piece.unwrap()));
        Some(all(text.finish()))
    };
    let alone: Vec<Option<Text>> = requests().into_iter().map(alone).collect();
    assert_eq!(alone.iter().filter(|text| text.is_none()).count(), 1);
    let ends: Vec<End> = alone.iter().flatten().map(|text| text.2).collect();
    assert!(ends.contains(&End::StopString) && ends.contains(&End::Length), "{ends:?}");
    for texts in 1..=4 {
        let mut options = Options { ram: "min".parse().unwrap(), ..Options::default() };
        options.streaming.warm_start = false;
        let needs = Needs { texts, ..Needs::default() };
        let tales = tales();
        let mut model = tales.with(options).needs(needs).load().unwrap();
        // Twice, and with texts abandoned and cancelled in between: nothing of them is left.
        for round in 0..2 {
            let mut found = vec![None; alone.len()];
            for (number, made) in model.generate_all(requests()).unwrap() {
                assert!(found[number].is_none(), "{number} ended twice");
                found[number] = Some(made.ok().map(all));
            }
            let expected: Vec<Option<Option<Text>>> = alone.iter().cloned().map(Some).collect();
            assert_eq!(found, expected, "{texts} at a time, round {round}");
            drop(model.generate_all(requests()).unwrap().nth(1));
            let cancel = Cancel::new();
            let cancelled = model.generate_all(requests()).unwrap().cancelled_by(cancel.clone());
            let mut steps = 0;
            let cancelled = cancelled.reporting(|| {
                steps += 1;
                if steps == 3 {
                    cancel.cancel();
                }
            });
            let ends: Vec<_> = cancelled.map(|(_, made)| made.ok().map(|made| made.end)).collect();
            assert!(ends.contains(&Some(End::Cancelled)), "{ends:?}");
            assert!(
                ends.len() < alone.len() || texts > 3,
                "texts that wait do not begin: {ends:?}"
            );
        }
    }
}

/// A seeded text of `new` tokens.
fn continuation(model: &LoadedModel, prompt: &str, seed: u64, new: usize) -> BatchRequest {
    let options = GenerationOptions {
        temperature: Some(0.8),
        seed: Some(seed),
        max_new_tokens: Some(new),
        ignore_eos: true,
        ..GenerationOptions::default()
    };
    BatchRequest {
        tokens: model.text().tokenizer().unwrap().encode(prompt, true).unwrap(),
        generation: model.model().generation(&options).unwrap(),
        position: Position::Middle,
        bias: Vec::new(),
        constraint: None,
        ranks: None,
        prompt_ranks: false,
        pooling: None,
        witness: None,
        short_lived: false,
        owner: 0,
        cancel: Cancel::new(),
    }
}

/// The text's tokens and its end, and the number of steps.
fn to_its_end(batch: &mut Batch<'_>) -> (Generated, usize) {
    let (mut ended, mut steps, mut pieces) = (None, 0, String::new());
    while ended.is_none() {
        batch.step(&mut |_, event| match event {
            Event::Piece(piece, _) => pieces += &piece.text,
            Event::Resumed(before) => before.iter().for_each(|piece| pieces += &piece.text),
            Event::Ended(made) => ended = Some(made.unwrap()),
            _ => {}
        });
        steps += 1;
    }
    let made = ended.unwrap();
    assert!(made.text.ends_with(&pieces), "{pieces}");
    (made, steps)
}

#[test]
fn the_same_text_again_goes_on_where_it_was() {
    let mut model = streamed(&tales());
    let text = continuation(&model, "The wolf", 7, 20);
    let other = continuation(&model, "The wolf", 8, 20);
    let prompt = text.tokens.len();
    let mut batch = model.batch().unwrap();
    batch.add(0, text.clone()).unwrap();
    let (whole, steps) = to_its_end(&mut batch);
    assert_eq!((whole.tokens.len(), steps), (20, 20));
    // Ended before: nothing is computed.
    assert_eq!(batch.add(1, text.clone()).unwrap(), Some(prompt));
    let (again, steps) = to_its_end(&mut batch);
    assert_eq!((&again.tokens, &again.text, again.end), (&whole.tokens, &whole.text, whole.end));
    assert_eq!(steps, 1);
    // Another seed is another text, with the same prompt.
    assert_eq!(batch.add(2, other).unwrap(), Some(prompt - 1));
    let (another, steps) = to_its_end(&mut batch);
    assert_eq!(steps, 20);
    assert_ne!(another.tokens, whole.tokens);
    // Cut off between passes, and then in a pass.
    batch.add(3, text.clone()).unwrap();
    (0..8).for_each(|_| batch.step(&mut |_, _| {}));
    let cancelled = BatchRequest { cancel: Cancel::new(), ..text.clone() };
    text.cancel.cancel();
    assert_eq!(to_its_end(&mut batch).0.end, End::Cancelled);
    assert_eq!(batch.add(4, cancelled.clone()).unwrap(), Some(prompt));
    let cancel = cancelled.cancel.clone();
    let mut end = None;
    while end.is_none() {
        batch.step(&mut |_, event| match event {
            // The pass after this token ends at its first layer.
            Event::Piece(piece, _) if piece.token == Some(whole.tokens[9]) => cancel.cancel(),
            Event::Ended(made) => end = Some(made.unwrap().end),
            _ => {}
        });
    }
    assert_eq!(end, Some(End::Cancelled));
    let again = BatchRequest { cancel: Cancel::new(), ..text };
    assert_eq!(batch.add(5, again).unwrap(), Some(prompt));
    let (rest, steps) = to_its_end(&mut batch);
    assert_eq!((rest.tokens, rest.text), (whole.tokens, whole.text));
    assert!(steps <= 12, "{steps} steps for the last 10 tokens");
}

#[test]
fn texts_in_turns_are_those_in_shared_passes() {
    let tales = tales();
    let needs = Needs { texts: 3, ..Needs::default() };
    // Without a forecast, which this policy has none of, turns are tried whatever passes take.
    let mut options = Options { ram: "min".parse().unwrap(), ..Options::default() };
    options.streaming.policy = "lru".parse().unwrap();
    options.streaming.warm_start = false;
    let mut model = tales.with(options).needs(needs).load().unwrap();
    let prompts = [("The wolf", 7), ("Once upon a time", 8), ("A cat", 9)];
    let texts = prompts.map(|(prompt, seed)| continuation(&model, prompt, seed, 450));
    let mut run = |gap: Option<Duration>| {
        let mut batch = model.batch().unwrap();
        if let Some(gap) = gap {
            batch = batch.with_turns(gap);
        }
        for (number, text) in texts.iter().enumerate() {
            batch.add(number, text.clone()).unwrap();
        }
        let mut made = vec![None; texts.len()];
        let mut alone = 0;
        while !batch.is_empty() {
            let (running, mut tokens) = (batch.len(), 0);
            batch.step(&mut |number, event| match event {
                Event::Piece(piece, _) => tokens += usize::from(piece.token.is_some()),
                Event::Ended(text) => made[number] = Some(text.unwrap().tokens),
                _ => {}
            });
            alone += usize::from(tokens == 1 && running > 1);
        }
        (made, alone)
    };
    let (shared, alone) = run(None);
    assert_eq!(alone, 0);
    assert!(shared.iter().all(|text| text.as_ref().unwrap().len() == 450));
    // Turns are tried once what shared passes cost is known, in the second round.
    let (turns, alone) = run(Some(Duration::from_secs(1000)));
    assert_eq!(turns, shared);
    assert!(alone >= 128, "{alone} passes over one text");
    let (none, alone) = run(Some(Duration::ZERO));
    assert_eq!((none, alone), (shared, 0));
}

/// A prompt that fills the context, or nearly, ends alike alone and among others.
#[test]
fn a_full_context_ends_a_text_alike_among_others() {
    let tales = tales();
    let loaded = |texts| {
        let mut options = Options { context: Some(24), ..Options::default() };
        options.streaming.warm_start = false;
        tales.with(options).needs(Needs { texts, ..Needs::default() }).load().unwrap()
    };
    let requests = || [20, 24, 25, 1].map(|n| Request::from(vec![7; n]).seed(3).max_new_tokens(40));
    let end = |made: Result<Generated, Error>| made.ok().map(|made| (made.tokens, made.end));
    let mut model = loaded(1);
    let alone = requests().map(|request| {
        let mut text = model.generate(request).ok()?;
        text.by_ref().for_each(|piece| drop(piece.unwrap()));
        end(Ok(text.finish()))
    });
    assert_eq!(alone.clone().map(|text| text.map(|text| text.1)).last(), Some(&Some(End::Context)));
    // 0 is as good as 1.
    for texts in [0, 3] {
        let mut found = vec![None; alone.len()];
        for (number, made) in loaded(texts).generate_all(requests()).unwrap() {
            found[number] = end(made);
        }
        assert_eq!(found, alone, "{texts} at a time");
    }
}

/// Observer that cancels in a layer of the pass at a position.
struct Canceller {
    cancel: Cancel,
    position: usize,
    layer: usize,
}

impl Observer for Canceller {
    fn routed(&mut self, pass: &Pass, layer: usize, _: &Routed) -> Result<(), SourceError> {
        if (pass.first_position(), layer) == (self.position, self.layer) {
            self.cancel.cancel();
        }
        Ok(())
    }
}

#[test]
fn cancel_handle_ends_a_text_between_and_within_passes() {
    let mut model = streamed(&tales());
    let whole = text(&mut model, wolf());
    let position = |token| if token == 0 { 0 } else { whole.prompt.tokens + token - 1 };
    for (token, layer) in [(0, 2), (3, 0), (3, 5)] {
        let generate = model.generate(wolf()).unwrap();
        let cancel = generate.cancel_handle();
        let mut canceller = Canceller { cancel: cancel.clone(), position: position(token), layer };
        let mut generate = generate.observed_by(&mut canceller);
        let pieces = generate.by_ref().map(Result::unwrap).count();
        let made = generate.finish();
        assert_eq!((made.end, made.tokens.len()), (End::Cancelled, token), "{token} {layer}");
        assert!(pieces >= token && whole.text.starts_with(&made.text));
        assert!(cancel.is_cancelled());
        let again = text(&mut model, wolf());
        assert_eq!(again.tokens, whole.tokens, "after {token} {layer}");
    }
    // With a flag, as set by a signal, the pass in progress is completed.
    let cancel = Cancel::between_tokens(Arc::default());
    let mut canceller = Canceller { cancel: cancel.clone(), position: position(3), layer: 0 };
    let generate = model.generate(wolf()).unwrap().cancelled_by(cancel.clone());
    let mut generate = generate.observed_by(&mut canceller);
    let pieces = generate.by_ref().filter(Result::is_ok).count();
    assert_eq!((pieces, generate.finish().end), (3, End::Cancelled));
}

/// Reader that cancels a text before its next read, for which the text waits.
struct Gate {
    within: Arc<dyn ShardReader>,
    cancel: Mutex<Option<Cancel>>,
}

impl ShardReader for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> std::io::Result<usize> {
        if let Some(cancel) = self.cancel.lock().unwrap().take() {
            cancel.cancel();
        }
        self.within.read_at(file, offset, into)
    }
}

#[test]
fn custom_reader_is_used_and_its_wait_can_be_cancelled() {
    let opened = tales();
    let within = ReaderKind::Direct.open(opened.manifest(), opened.dir(), 4).unwrap();
    let gate = Arc::new(Gate { within, cancel: Mutex::default() });
    let mut model = opened.ram("min").reader(gate.clone()).load().unwrap();
    // The first text of the model, so that experts have to be read whatever memory other tests leave.
    let mut generate = model.generate(wolf()).unwrap();
    assert!(generate.next().unwrap().is_ok());
    *gate.cancel.lock().unwrap() = Some(generate.cancel_handle());
    assert!(generate.by_ref().all(|piece| piece.is_ok()));
    let made = generate.finish();
    assert_eq!(made.end, End::Cancelled);
    let whole = text(&mut model, wolf());
    assert_eq!(model.metrics(&whole).reader, "gate");
    // Reads ahead are waited for as well, while the passes that they precede have all they need.
    assert!(made.tokens.len() < whole.tokens.len() && whole.tokens.starts_with(&made.tokens));
    assert_eq!(text(&mut model, wolf()).tokens, whole.tokens);
}

/// Observer that records the threads on which passes run.
#[derive(Default)]
struct Places(Vec<(Option<String>, usize)>);

impl Observer for Places {
    fn layer_begins(&mut self, _: &Pass, _: usize, _: &[f32]) -> Result<(), SourceError> {
        let name = std::thread::current().name().map(str::to_owned);
        self.0.push((name, rayon::current_num_threads()));
        Ok(())
    }
}

#[test]
fn passes_run_on_the_pool_from_any_thread() {
    let threads = Threads::start(3).unwrap();
    let opened = tales();
    let options = Options { resident: true, ..Options::default() };
    let mut model = opened.with(options).threads(&threads).load().unwrap();
    let here = text(&mut model, wolf());
    assert_eq!(model.metrics(&here).threads, 3);
    let foreign = move || {
        let mut places = Places::default();
        let mut generate = model.generate(wolf()).unwrap().observed_by(&mut places);
        assert!(generate.by_ref().all(|piece| piece.is_ok()));
        (generate.finish(), places.0)
    };
    let (there, places) = std::thread::spawn(foreign).join().unwrap();
    assert_eq!((there.tokens, there.text), (here.tokens, here.text));
    assert!(places.len() > 8);
    for (name, count) in places {
        assert!(name.is_some_and(|name| name.starts_with("sws-pass")));
        assert_eq!(count, 3);
    }
}

#[test]
fn tokens_of_the_sequence_are_not_computed_again() {
    let mut model = streamed(&tales());
    let options = wolf().options;
    let generation = model.model().generation(&options).unwrap();
    let to_the_end = |model: &mut LoadedModel, tokens: &[u32]| {
        let mut generate = model.continued(tokens.to_vec(), &generation).unwrap();
        assert!(generate.by_ref().all(|piece| piece.is_ok()));
        generate.finish()
    };
    let begun = to_the_end(&mut model, &[1, 2, 3]);
    assert_eq!(begun.prompt.tokens, 3);
    // The last token of a text has not been computed yet.
    let all = [&[1, 2, 3], &begun.tokens[..], &[5]].concat();
    let resumed = to_the_end(&mut model, &all);
    assert_eq!(resumed.prompt.tokens, 2);
    to_the_end(&mut model, &[4]);
    let anew = to_the_end(&mut model, &all);
    assert_eq!((anew.prompt.tokens, &anew.tokens), (all.len(), &resumed.tokens));
}

/// Makes shards of a model with a chat template. For a checkpoint, the user's cache would keep
/// records of its files.
fn shards(dir: &Path) -> PathBuf {
    let (from, out) = (dir.join("checkpoint"), dir.join("shards"));
    goldens::copy("qwen3_moe", &from);
    std::fs::write(from.join("chat_template.jinja"), TEMPLATE).unwrap();
    let source = open_checkpoint(&from, None).unwrap();
    let naming = sws_model::naming(source.config()).unwrap();
    shard(&*source, &*naming, &out, &ShardOptions::default(), &|_| ()).unwrap();
    out
}

#[test]
fn conversations_take_turns_on_one_model() {
    let temp = tempfile::tempdir().unwrap();
    let opened = Model::open(shards(temp.path())).unwrap();
    let mut model = streamed(&opened);
    let options = GenerationOptions {
        temperature: Some(2.0),
        seed: Some(7),
        max_new_tokens: Some(6),
        ignore_eos: true,
        ..GenerationOptions::default()
    };
    let begin = |model: &LoadedModel| model.conversation(&options).unwrap();
    let say = |model: &mut LoadedModel, conversation: &mut sws::Conversation, text: &str| {
        let mut answer = model.chat(conversation, text).unwrap();
        assert!(answer.by_ref().all(|piece| piece.is_ok()));
        answer.finish()
    };
    let mut alone = begin(&model);
    let first = say(&mut model, &mut alone, "hello");
    let second = say(&mut model, &mut alone, "again");
    let said: Vec<&str> = alone.messages().iter().map(|m| m.content.as_str()).collect();
    assert_eq!(said, ["hello", &first.text, "again", &second.text]);

    // Two conversations in turn give the same answers as each alone.
    let (mut one, mut other) = (begin(&model), begin(&model).system("be kind"));
    assert_eq!(say(&mut model, &mut one, "hello").text, first.text);
    assert_ne!(say(&mut model, &mut other, "hello").text, first.text);
    assert_eq!(say(&mut model, &mut one, "again").text, second.text);

    // An answer cut short is part of the conversation; a message without an answer is not.
    let mut cut = begin(&model);
    let mut answer = model.chat(&mut cut, "hello").unwrap();
    answer.next().unwrap().unwrap();
    drop(answer);
    assert_eq!(cut.messages().len(), 2);
    assert!(first.text.starts_with(&cut.messages()[1].content));
    let refused = model.chat(&mut cut, &"a".repeat(400)).unwrap_err();
    assert!(matches!(refused, Error::Forward(_)), "{refused}");
    assert_eq!(cut.messages().len(), 2);
    cut.reset();
    assert!(cut.messages().is_empty());
}

#[test]
fn a_plan_is_made_without_loading() {
    let plan = tales().ram("min").plan().unwrap();
    assert!(plan.arena_bytes() > 0);
    let planning =
        tales().ram("4GiB").needs(Needs { texts: 2, ..Needs::default() }).planning().unwrap();
    assert_eq!(planning.ram, 4 << 30);
    assert!(!planning.planner.plan(planning.ram).unwrap().slots.is_empty());
}

#[test]
fn errors_name_the_file_and_the_remedy() {
    let temp = tempfile::tempdir().unwrap();
    let spoilt = |name: &str, file: &str, bytes: &[u8]| -> PathBuf {
        let dir = shards(&temp.path().join(name));
        std::fs::write(dir.join(file), bytes).unwrap();
        dir
    };
    let config = spoilt("config", "config.json", b"{}");
    let tokenizer = spoilt("tokenizer", "tokenizer.json", b"{}");
    let draft = spoilt("draft", "draft.safetensors", b"no draft");
    let load = |dir: &Path| Model::open(dir).and_then(|model| model.ram("min").load()).map(drop);
    let cases: [(Result<(), Error>, &[&str]); 7] = [
        (load(Path::new("/nowhere/at all")), &["/nowhere/at all", "does not exist; give"]),
        (load(Path::new("no/such-model")), &["no/such-model", "sws pull"]),
        (load(&config), &["config.json", ";"]),
        (load(&tokenizer), &["tokenizer.json", ";"]),
        (load(&draft), &["draft.safetensors`", "sws draft train"]),
        (tales().ram("8").load().map(drop), &["`8`", "8GiB"]),
        (tales().ram("1MiB").load().map(drop), &["tales-moe", "--ram"]),
    ];
    for (result, words) in cases {
        let error = result.unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "no {word:?} in {error:?}");
        }
    }
    let mut model = streamed(&tales());
    let cases: [(Request, &[&str]); 3] = [
        (Prompt::Tokens(vec![9_999_999]).into(), &["9999999", "tokenizer"]),
        (Prompt::Tokens(Vec::new()).into(), &["at least one"]),
        (Prompt::Tokens(vec![1; 100_000]).into(), &["100000", "context"]),
    ];
    for (request, words) in cases {
        let failed = model.generate(request).and_then(|mut text| text.next().unwrap().map(drop));
        let error = failed.unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "no {word:?} in {error:?}");
        }
    }
    let refused = model.conversation(&GenerationOptions::default()).unwrap_err().to_string();
    assert!(refused.contains("chat template"), "{refused}");
    let cancel = Cancel::new();
    cancel.cancel();
    assert!(matches!(tales().ram("min").cancelled_by(cancel).load(), Err(Error::Cancelled)));
}

/// Little memory divides a part of the prompt among passes, and its progress never goes back.
#[test]
fn progress_of_a_prompt_never_goes_back() {
    let tokens: Vec<u32> = (0..230).map(|t| (t * 131 + 5) % 4096).collect();
    for resident in [false, true] {
        let mut model = load(&tales(), |options| match resident {
            true => options.resident = true,
            false => options.ram = "min".parse().unwrap(),
        });
        let passes = model.plan().map_or(1, |plan| tokens.len().div_ceil(plan.chunk));
        assert_eq!(passes > 1, !resident, "{passes} passes");
        let mut seen = Vec::new();
        let request = Request::from(tokens.clone()).seed(7).max_new_tokens(2);
        let generate = model.generate(request).unwrap();
        generate.reporting(|progress| seen.push(progress)).for_each(|piece| drop(piece.unwrap()));
        let total = (tokens.len() * 8) as u64;
        assert!(seen.iter().all(|progress| progress.total == total), "{seen:?}");
        assert!(seen.is_sorted_by_key(|progress| progress.done), "{seen:?}");
        assert_eq!((seen[0].done, seen[seen.len() - 1].done), (0, total));
        // A step for each layer of each pass, and one at the end.
        assert_eq!(seen.len(), passes * 8 + 1);
    }
}
