"""The module `sws` of an installed wheel, beside the command of the same wheel."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import numpy as np
import sws

RAM = "160MiB"
PROMPT = "The wolf"


def command(*arguments: str) -> str:
    done = subprocess.run(["sws", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Texts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = sws.Model(sws.DEMO, ram=RAM, logits=True, parallel=2, reserve="4MB")

    @classmethod
    def tearDownClass(cls):
        cls.model.close()

    def test_a_text_is_that_of_the_command(self):
        told = json.loads(command("run", sws.DEMO, "--prompt", PROMPT, "--seed", "7", "-n", "40", "--json"))
        text = self.model.generate(PROMPT, seed=7, max_new_tokens=40)
        pieces = list(text)
        self.assertEqual("".join(pieces), told["text"])
        self.assertEqual((text.text, text.tokens, text.end, text.seed), tuple(told[k] for k in ("text", "tokens", "end", "seed")))
        self.assertEqual(text.details.keys(), told["metrics"].keys())

    def test_a_text_is_iterated_over_once(self):
        text = self.model.generate(PROMPT, seed=7, max_new_tokens=5)
        self.assertIsNone(text.end)
        first = next(text)
        self.assertEqual(text.text, first)
        rest = [*text]
        self.assertEqual((len(rest), [*text], text.read()), (4, [], first + "".join(rest)))
        # The next one is the same, to the bit.
        self.assertEqual(self.model.generate(PROMPT, seed=7, max_new_tokens=5).read(), text.text)

    def test_texts_in_shared_passes_are_those_alone(self):
        prompts = ["The wolf", "Once", self.model.encode("A bear")]
        alone = [self.model.generate(prompt, seed=3, max_new_tokens=12).read() for prompt in prompts]
        together = [""] * len(prompts)
        for made in self.model.generate_all(prompts, seed=3, max_new_tokens=12):
            together[made.number] = made.text
        self.assertEqual(together, alone)

    def test_texts_without_a_seed_have_seeds_of_their_own(self):
        made = list(self.model.generate_all([PROMPT] * 3, temperature=1.0, max_new_tokens=12))
        self.assertEqual(len({text.seed for text in made}), 3)
        self.assertGreater(len({text.text for text in made}), 1)
        for text in made:
            again = self.model.generate(PROMPT, temperature=1.0, max_new_tokens=12, seed=text.seed)
            self.assertEqual(again.read(), text.text)
        given = self.model.generate_all([PROMPT] * 2, temperature=1.0, max_new_tokens=2, seed=3)
        self.assertEqual([text.seed for text in given], [3, 3])
        greedy = self.model.generate_all([PROMPT], temperature=0, max_new_tokens=2)
        self.assertEqual([text.seed for text in greedy], [None])

    def test_an_error_of_one_text_leaves_the_others(self):
        texts = self.model.generate_all([[1], [self.model.vocab], [2]], seed=1, max_new_tokens=2)
        numbers, errors = [], []
        while True:
            try:
                numbers.append(next(texts).number)
            except sws.Error as error:
                errors.append(str(error))
            except StopIteration:
                break
        self.assertEqual(sorted(numbers), [0, 2])
        self.assertRegex(errors[0], f"text 1: .*{self.model.vocab}")

    def test_metrics_grow_with_the_text(self):
        text = self.model.generate(PROMPT, seed=7, max_new_tokens=8)
        next(text)
        first = text.metrics
        text.read()
        last = text.metrics
        self.assertGreater(last.tokens, first.tokens)
        self.assertGreater(last.hits + last.late + last.misses, first.hits + first.late + first.misses)
        self.assertGreater(last.tokens_per_second, 0)
        # Later texts change nothing of it.
        self.model.generate("Once", seed=1, max_new_tokens=8).read()
        self.assertEqual(text.metrics.tokens, last.tokens)
        self.assertEqual(text.metrics.bytes_read, text.details["disk"]["text_bytes"])

    def test_logits_and_routes_are_those_of_the_command(self):
        tokens = self.model.encode("The wolf and the bear")
        logits, routes = self.model.forward(tokens)
        with tempfile.TemporaryDirectory() as temp:
            out = Path(temp, "out.safetensors")
            given = ",".join(map(str, tokens))
            command("forward", sws.DEMO, "--tokens", given, "--routes", "--out", str(out))
            data = out.read_bytes()
        header = int.from_bytes(data[:8], "little")
        tensors = json.loads(data[8 : 8 + header])
        for name, ours in (("logits", logits), ("routes", routes)):
            begin, end = tensors[name]["data_offsets"]
            self.assertEqual((list(ours.shape), ours.tobytes()), (tensors[name]["shape"], data[8 + header :][begin:end]))

    def test_recorded_logits_and_routes_are_those_of_all_positions(self):
        text = self.model.generate(PROMPT, temperature=0, max_new_tokens=6, logits=True, routes=True)
        text.read()
        prompt = self.model.encode(PROMPT)
        logits, routes = self.model.forward(prompt + text.tokens[:-1])
        self.assertEqual(text.logits.tobytes(), logits[len(prompt) - 1 :].tobytes())
        self.assertEqual(text.routes.tolist(), routes.tolist())
        self.assertEqual(text.logits.argmax(axis=1).tolist(), text.tokens)
        # Arrays are the caller's own.
        text.logits[0] = 0

    def test_the_command_replays_a_trace(self):
        text = self.model.generate(PROMPT, seed=7, max_new_tokens=20, routes=True)
        text.read()
        with tempfile.TemporaryDirectory() as temp:
            trace = Path(temp, "trace.safetensors")
            trace.write_bytes(text.trace)
            replayed = json.loads(command("replay", str(trace), "--json"))
        self.assertIn(len(text.routes[0]), json_numbers(replayed))

    def test_scores_are_softmax_of_logits(self):
        tokens = self.model.encode("The wolf and the bear")
        logits, _ = self.model.forward(tokens)
        wide = logits.astype(np.float64)
        logprobs = wide - np.log(np.exp(wide - wide.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)) - wide.max(axis=1, keepdims=True)
        ranks = self.model.score(tokens, top=2)
        self.assertEqual([rank.token for rank in ranks], tokens[1:])
        for row, rank in zip(logprobs, ranks):
            self.assertAlmostEqual(row[rank.token], rank.logprob, places=4)
            self.assertEqual([token for token, _ in rank.top], np.argsort(-row, kind="stable")[:2].tolist())

    def test_text_and_tokens_convert(self):
        tokens = self.model.encode("Grüße, wolf", special=False)
        self.assertEqual(self.model.decode(tokens), "Grüße, wolf")

    def test_stop_strings_end_a_text(self):
        whole = self.model.generate(PROMPT, seed=7, max_new_tokens=40).read()
        stop = whole[10:16]
        text = self.model.generate(PROMPT, seed=7, max_new_tokens=40, stop=stop)
        self.assertEqual((text.read(), text.end), (whole[: whole.index(stop)], "stop_string"))


def json_numbers(value) -> list:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for item in value for number in json_numbers(item)]
    return [value]


class Errors(unittest.TestCase):
    def refused(self, error, pattern, call, *arguments, **options):
        with self.assertRaisesRegex(error, pattern):
            call(*arguments, **options)

    def test_sentences_of_the_library_are_raised(self):
        self.refused(sws.Error, "nonesuch.*`sws pull", sws.Model, "nobody/nonesuch")
        self.refused(sws.Error, "`1lb` is not an amount of memory", sws.Model, sws.DEMO, ram="1lb")
        self.refused(sws.Error, "smallest that works here is --ram", sws.Model, sws.DEMO, ram="1MiB")
        self.refused(sws.Error, "`tape` is not a reader", sws.plan, sws.DEMO, reader="tape")
        with tempfile.TemporaryDirectory() as temp:
            Path(temp, "manifest.json").write_text("{")
            self.refused(sws.Error, "manifest.json", sws.Model, temp)

    def test_options_have_names_and_types(self):
        self.refused(TypeError, "no option `rum`", sws.Model, sws.DEMO, rum="1GiB")
        for options in (
            {"threads": "many"},
            {"threads": 0},
            {"threads": -1},
            {"parallel": 0},
            {"context": 0},
            {"ram": None},
            {"draft": 5},
            {"reserve": 1.5},
        ):
            [name] = options
            self.refused(sws.Error, f"`{name}` cannot be [^\\n]+; [^\\n]+$", sws.Model, sws.DEMO, **options)
        with sws.Model(sws.DEMO, ram=RAM) as model:
            self.refused(TypeError, "no option `heat`", model.generate, PROMPT, heat=1)
            for text in (5, b"The wolf", bytearray(b"The wolf"), [-1], ["The wolf"]):
                self.refused(TypeError, "a str or a list of tokens: ", model.generate, text)
            for options in ({"seed": -1}, {"temperature": "hot"}, {"stop": 5}, {"stop": ["a", 5]}, {"logits": "all"}):
                [name] = options
                self.refused(sws.Error, f"`{name}` cannot be [^\\n]+; [^\\n]+$", model.generate, PROMPT, **options)
            self.assertTrue(model.generate(PROMPT, stop=None, max_new_tokens=1).read())
            self.refused(sws.Error, "temperature", model.generate, PROMPT, temperature=-1)
            self.refused(sws.Error, "logits=True", model.forward, PROMPT)
            self.refused(sws.Error, "reserve", model.generate, PROMPT, logits=True)
            self.refused(sws.Error, "chat template", model.chat, [{"role": "user", "content": "where"}])
            self.refused(ValueError, "one of the user", model.chat, [])
            self.refused(ValueError, "lacks `content`", model.chat, [{"role": "user"}])
            self.refused(ValueError, "not over", lambda: model.generate(PROMPT).routes)
            # No refusal has kept the model from continuing.
            self.assertTrue(model.generate(PROMPT, max_new_tokens=1).read())

    def test_logits_beyond_the_reserve_are_refused(self):
        with sws.Model(sws.DEMO, ram=RAM, logits=True, reserve=5 * 4 * 4096) as model:
            self.assertEqual(model.forward([5] * 5)[0].shape, (5, model.vocab))
            self.refused(sws.Error, f"reserve={6 * 4 * 4096}$", model.forward, [5] * 6)
            self.refused(sws.Error, "of 6 tokens", model.generate, PROMPT, max_new_tokens=6, logits=True)
            text = model.generate(PROMPT, max_new_tokens=5, logits=True, ignore_eos=True)
            text.read()
            self.assertEqual(text.logits.shape, (5, model.vocab))
            # Scores need no arrays.
            self.assertEqual(len(model.score([5] * 9)), 8)

    def test_a_prompt_that_cannot_be_continued_is_refused_at_once(self):
        with sws.Model(sws.DEMO, ram=RAM, context=8) as model:
            self.refused(sws.Error, "8", model.generate, list(range(9)))
            self.refused(sws.Error, "token", model.generate([]).read)


def overwrite(files: dict[Path, bytes]):
    """Writes in place, as damage does."""
    for path, data in files.items():
        with path.open("r+b") as file:
            file.write(data)


class Failures(unittest.TestCase):
    def test_a_text_that_fails_keeps_its_sentence_and_cost(self):
        with tempfile.TemporaryDirectory() as temp:
            path = shutil.copytree(sws.DEMO, Path(temp, "tale"))
            with sws.Model(path, ram="min") as model:
                text = model.generate(PROMPT, seed=7, max_new_tokens=50, routes=True)
                next(text)
                kept = {file: file.read_bytes() for file in path.glob("layer_*/expert_*")}
                self.assertTrue(kept)
                overwrite({path: bytes(len(data)) for path, data in kept.items()})
                # The next call says so, too.
                for call in (text.read, lambda: next(text), lambda: text.routes):
                    with self.assertRaisesRegex(sws.Error, "checksum"):
                        call()
                self.assertEqual(text.end, "failed")
                tokens, cost = text.tokens, text.metrics.tokens
                overwrite(kept)
                again = model.generate(PROMPT, seed=7, max_new_tokens=50)
                again.read()
                self.assertEqual(again.tokens[: len(tokens)], tokens)
                self.assertEqual(text.metrics.tokens, cost)


class Lives(unittest.TestCase):
    """Models that are closed, shared by threads, or forked; texts that are left."""

    def test_a_closed_model_is_refused(self):
        model = sws.Model(sws.DEMO, ram=RAM)
        text = model.generate(PROMPT, seed=7, max_new_tokens=50)
        next(text)
        model.close()
        self.assertEqual(([*text], text.end), ([], "interrupted"))
        with self.assertRaisesRegex(sws.Error, "closed"):
            model.generate(PROMPT)
        model.close()

    def test_closing_cancels_work_and_begins_none(self):
        model = sws.Model(sws.DEMO, ram=RAM, logits=True)
        tokens = (model.encode("The wolf ") * 2000)[: model.context - 8]
        errors = []

        def score():
            try:
                model.score(tokens)
            except sws.Error as error:
                errors.append(str(error))

        threads = [threading.Thread(target=score) for _ in range(4)]
        for thread in threads:
            thread.start()
        model.close()
        for thread in threads:
            thread.join()
        self.assertEqual(len(errors), 4)
        for sentence in errors:
            self.assertRegex(sentence, "closed")

    def test_a_text_keeps_its_model(self):
        text = sws.Model(sws.DEMO, ram=RAM).generate(PROMPT, seed=7, max_new_tokens=5)
        self.assertEqual(len([*text]), 5)

    def test_closed_models_give_their_memory_back(self):
        def resident() -> int:
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

        def live():
            with sws.Model(sws.DEMO, resident=True) as model:
                model.generate(PROMPT, max_new_tokens=1).read()

        live()
        before = resident()
        for _ in range(3):
            live()
        # The weights of a model are 27 MB.
        self.assertLess(resident() - before, 20 << 20)

    def test_one_thread_ends_a_text_before_the_next(self):
        with sws.Model(sws.DEMO, ram=RAM) as model:
            with model.generate(PROMPT, seed=7) as text:
                next(text)
                with self.assertRaisesRegex(sws.Error, "not over"):
                    model.generate(PROMPT)
            self.assertEqual(text.end, "interrupted")
            for piece in model.generate(PROMPT, seed=7):
                break
            # The loop has dropped its text.
            self.assertTrue(model.generate(PROMPT, max_new_tokens=1).read())

    def test_texts_are_closed(self):
        with sws.Model(sws.DEMO, ram=RAM) as model:
            texts = model.generate_all([PROMPT] * 3, seed=7, max_new_tokens=5)
            self.assertEqual(next(texts).end, "length")
            with self.assertRaisesRegex(sws.Error, "close it"):
                model.generate(PROMPT)
            texts.close()
            self.assertEqual([*texts], [])
            with model.generate_all([PROMPT], ignore_eos=True, max_new_tokens=100_000):
                pass
            self.assertTrue(model.generate(PROMPT, max_new_tokens=1).read())

    def test_threads_wait_for_one_another(self):
        with sws.Model(sws.DEMO, ram=RAM) as model:
            alone = [model.generate(PROMPT, seed=seed, max_new_tokens=15).read() for seed in range(6)]
            told = [""] * len(alone)

            def tell(seed):
                told[seed] = model.generate(PROMPT, seed=seed, max_new_tokens=15).read()

            threads = [threading.Thread(target=tell, args=(seed,)) for seed in range(len(alone))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(told, alone)

    def test_the_interpreter_runs_while_the_engine_works(self):
        with sws.Model(sws.DEMO, ram=RAM, threads=1) as model:
            # A prompt of many tokens is one call.
            tokens = model.encode("The wolf ") * 300
            text = model.generate(tokens[:1500], max_new_tokens=1)
            turns = 0
            reader = threading.Thread(target=text.read)
            reader.start()
            while reader.is_alive():
                turns += 1
                time.sleep(0.001)
            self.assertGreater(turns, 10)

    def test_another_thread_cancels_a_text(self):
        with sws.Model(sws.DEMO, ram=RAM) as model:
            text = model.generate(PROMPT, ignore_eos=True, max_new_tokens=100_000)
            next(text)
            text.cancel()
            text.read()
            self.assertEqual(text.end, "interrupted")
            self.assertTrue(model.generate(PROMPT, max_new_tokens=1).read())

    def test_ctrl_c_ends_a_text(self):
        with sws.Model(sws.DEMO, ram=RAM) as model:
            # Both a long prompt, in one call, and a text piece by piece.
            tokens = (model.encode("The wolf ") * 2000)[: model.context - 8]
            for prompt in (tokens, PROMPT):
                text = model.generate(prompt, ignore_eos=True, max_new_tokens=100_000)
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
                with self.assertRaises(KeyboardInterrupt):
                    for _ in text:
                        pass
                    time.sleep(5)
                text.close()
                self.assertIn(text.end, ("interrupted", "context"))
            self.assertTrue(model.generate(PROMPT, max_new_tokens=1).read())

    def test_a_fork_is_told_to_open_the_model_itself(self):
        def fork(model, begun) -> int:
            child = os.fork()
            if child == 0:
                # Ends a child that waits for a thread of its parent.
                signal.alarm(60)
                told = 0
                calls = [lambda: model.generate(PROMPT), lambda: next(begun)]
                calls += [begun.read] if isinstance(begun, sws.Text) else []
                for call in calls:
                    try:
                        call()
                    except sws.Error as error:
                        told += "fork" in str(error)
                with model, begun:
                    pass
                os._exit(told)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        with sws.Model(sws.DEMO, ram=RAM) as model:
            text = model.generate(PROMPT, seed=7, max_new_tokens=5)
            first = next(text)
            self.assertEqual(fork(model, text), 3)
            # The parent goes on.
            self.assertTrue(text.read().startswith(first))
            self.assertEqual(text.end, "length")
            texts = model.generate_all([PROMPT] * 2, seed=7, max_new_tokens=5)
            next(texts)
            self.assertEqual(fork(model, texts), 2)
            self.assertEqual([made.text for made in texts], [text.text])


class Plans(unittest.TestCase):
    def test_plans_are_those_of_the_command(self):
        planned = sws.plan(sws.DEMO, ram=RAM)
        told = json.loads(command("plan", sws.DEMO, "--ram", RAM, "--no-probe", "--json"))
        for name in ("weight_bytes", "budget"):
            self.assertEqual(planned[name], told[name])
        self.assertEqual(planned["ledger"].keys(), told["ledger"].keys())
        self.assertEqual(sum(planned["ledger"].values()), planned["budget"])
        self.assertLessEqual(planned["plan"].keys(), told["plan"].keys())
        # An interpreter takes more than the command.
        self.assertGreater(planned["smallest_budget"], told["smallest_budget"])

    def test_the_budget_holds(self):
        """In processes of their own, whose peaks are their own."""
        # 1,500 tokens of 4,096 logits.
        forward = "kept = model.forward([5] * 1500)"
        for options, work in [("", ""), (', logits=True, context=2048, reserve="26MB"', forward)]:
            told = f"""
import sws
with sws.Model(sws.DEMO, ram="min"{options}) as model:
    {work}
    text = model.generate("The wolf", max_new_tokens=30)
    text.read()
    print(text.details["peak_rss_bytes"], text.details["ram_bytes"])
"""
            peak, ram = map(int, subprocess.check_output([sys.executable, "-c", told], text=True).split())
            with self.subTest(work=work):
                self.assertLessEqual(peak, ram)


if __name__ == "__main__":
    unittest.main()
