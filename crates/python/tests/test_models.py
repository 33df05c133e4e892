"""Models with a chat template, and packages that use the module, where they are installed."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

import numpy as np
import sws

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "crates" / "python" / "examples"
GOLDEN = ROOT / "tests" / "goldens" / "qwen3_moe"
sys.path.insert(0, str(ROOT / "tests" / "clients"))
import model as tiny  # noqa: E402

ASKED = [{"role": "user", "content": "where"}]


def needs(*packages: str):
    absent = [package for package in packages if importlib.util.find_spec(package) is None]
    return unittest.skipIf(absent, f"Python has no {', '.join(absent)}")


class Chats(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temp = tempfile.TemporaryDirectory()
        cls.path = Path(cls.temp.name, "tiny")
        tiny.make(cls.path)
        cls.model = sws.Model(cls.path, ram="2GiB", logits=True, context=128)

    @classmethod
    def tearDownClass(cls):
        cls.model.close()
        cls.temp.cleanup()

    def test_an_answer_is_that_of_the_command(self):
        asked = ["sws", "chat", str(self.path), "where", "--seed", "5", "-n", "12", "--json"]
        told = json.loads(subprocess.check_output(asked, text=True, stderr=subprocess.DEVNULL))
        text = self.model.chat(ASKED, seed=5, max_new_tokens=12)
        text.read()
        self.assertEqual((text.text, text.reasoning, text.tokens), (told["text"], told["thoughts"], told["tokens"]))

    def test_earlier_messages_are_part_of_the_prompt(self):
        history = [{"role": "system", "content": "be brief"}, *ASKED, {"role": "assistant", "content": "here"}, *ASKED]
        prompt = self.model.chat_prompt(history)
        self.assertEqual(prompt, "system be brief\nuser where\nassistant here\nuser where\nassistant ")
        text = self.model.chat(history, temperature=0, max_new_tokens=4)
        text.read()
        alone = self.model.generate(self.model.encode(prompt), temperature=0, max_new_tokens=4)
        alone.read()
        self.assertEqual(text.tokens, alone.tokens)

    def test_messages_are_any_mappings(self):
        asked = [types.MappingProxyType(message) for message in ASKED]
        self.assertEqual(self.model.chat_prompt(asked), self.model.chat_prompt(ASKED))

    def test_reasoning_is_switched_where_the_template_can(self):
        for call in (self.model.chat, self.model.chat_prompt):
            for think in (True, False):
                with self.assertRaisesRegex(sws.Error, "no switch for reasoning"):
                    call(ASKED, think=think)
        with tempfile.TemporaryDirectory() as temp:
            path = Path(temp, "tiny")
            tiny.make(path)
            with (path / "chat_template.jinja").open("a") as template:
                template.write("{% if enable_thinking is defined and not enable_thinking %}at once {% endif %}")
            with sws.Model(path, ram="2GiB", context=128) as model:
                prompt = model.chat_prompt(ASKED)
                self.assertEqual(model.chat_prompt(ASKED, think=False), prompt + "at once ")
                self.assertEqual(model.chat_prompt(ASKED, think=True), prompt)

    @needs("lm_eval")
    def test_the_harness_runs_in_process(self):
        from lm_eval.api.instance import Instance
        from lm_eval.api.registry import get_model
        from sws.lm_eval import SwsLM

        self.assertIs(get_model("sws"), SwsLM)
        harness = SwsLM(self.model)
        pairs = [("where", "abc"), ("where are you", " is it"), ("", "abc")]
        found = harness.loglikelihood([Instance("loglikelihood", {}, pair, n) for n, pair in enumerate(pairs)])
        for (context, continuation), (logprob, is_greedy) in zip(pairs, found):
            tokens = self.model.encode(context + continuation)
            tokens = tokens if context else [harness.prefix_token_id, *tokens]
            ranks = self.model.score(tokens)[-len(self.model.encode(continuation)) :]
            self.assertEqual(sum(rank.logprob for rank in ranks), logprob)
            self.assertEqual(all(rank.token == rank.top[0][0] for rank in ranks), is_greedy)
        [rolling] = harness.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("where",), 0)])
        ranks = self.model.score([harness.prefix_token_id, *self.model.encode("where")])
        self.assertAlmostEqual(rolling, sum(rank.logprob for rank in ranks), places=5)
        settings = {"until": ["STOP"], "max_gen_toks": 3, "temperature": 0}
        asked = [Instance("generate_until", {}, (text, settings), n) for n, text in enumerate(["where", "who"])]
        alone = [self.model.generate(text, temperature=0, max_new_tokens=3, stop="STOP").read() for text in ("where", "who")]
        self.assertEqual(harness.generate_until(asked), alone)

    @needs("lm_eval")
    def test_the_harness_passes_settings_or_refuses_them(self):
        from lm_eval.api.instance import Instance
        from sws.lm_eval import SwsLM

        harness = SwsLM(self.model)

        def texts(settings):
            return harness.generate_until([Instance("generate_until", {}, ("where", settings), 0)])

        sampled = {"temperature": 2.0, "top_p": 0.9, "top_k": 30, "min_p": 0.01, "repetition_penalty": 1.5, "seed": 5}
        alone = self.model.generate("where", max_new_tokens=4, **sampled).read()
        # The settings count.
        self.assertNotEqual(alone, self.model.generate("where", max_new_tokens=4, temperature=2.0, seed=5).read())
        for limit in ("max_gen_toks", "max_new_tokens"):
            self.assertEqual(texts({**sampled, limit: 4, "do_sample": True, "until": None}), [alone])
        greedy = self.model.generate("where", max_new_tokens=4, temperature=0).read()
        self.assertEqual(texts({"max_gen_toks": 4, "do_sample": False, "temperature": 2.0, "top_p": 0.9}), [greedy])
        with self.assertRaisesRegex(sws.Error, "`num_beams`"):
            texts({"max_gen_toks": 4, "num_beams": 4})
        for most in (128, 500):
            with self.assertRaisesRegex(sws.Error, f"{most} new tokens leave no room .* context of 128"):
                texts({"max_gen_toks": most})
        self.assertEqual(len(harness._fitting("where " * 40, 120)), 8)

        def ends(begin, stops):
            harness.model = types.SimpleNamespace(name="m", encode=lambda _: begin, stop_tokens=stops)
            return harness.prefix_token_id

        self.assertEqual((ends([7], []), ends([7, 8], [9]), ends([], [9, 10])), (7, 7, 9))
        with self.assertRaisesRegex(sws.Error, "no stop token"):
            ends([], [])

    @needs("lm_eval", "datasets")
    def test_the_harness_evaluates_a_task(self):
        import lm_eval
        from sws.lm_eval import SwsLM

        with tempfile.TemporaryDirectory() as temp:
            questions = Path(temp, "questions.json")
            questions.write_text("".join(json.dumps({"q": q, "a": 0}) + "\n" for q in ("who is it", "where is it")))
            task = {
                "task": "letters",
                "dataset_path": "json",
                "dataset_kwargs": {"data_files": {"test": str(questions)}},
                "test_split": "test",
                "output_type": "multiple_choice",
                "doc_to_text": "{{q}}",
                "doc_to_choice": ["x", "y"],
                "doc_to_target": "{{a}}",
                "metric_list": [{"metric": "acc"}],
            }
            results = lm_eval.simple_evaluate(model=SwsLM(self.model), tasks=[task], bootstrap_iters=0)
        self.assertIn(results["results"]["letters"]["acc,none"], (0.0, 0.5, 1.0))


class Goldens(unittest.TestCase):
    def test_logits_and_routes_are_those_of_transformers(self):
        data = (GOLDEN / "golden.safetensors").read_bytes()
        header = int.from_bytes(data[:8], "little")
        tensors = json.loads(data[8 : 8 + header])

        def tensor(name: str):
            begin, end = tensors[name]["data_offsets"]
            dtype = {"F32": "<f4", "I32": "<i4", "I64": "<i8"}[tensors[name]["dtype"]]
            return np.frombuffer(data[8 + header :][begin:end], dtype).reshape(tensors[name]["shape"])

        with sws.Model(GOLDEN, resident=True, logits=True) as model:
            logits, routes = model.forward(tensor("tokens"))
        expected = tensor("logits")
        self.assertLess(np.abs(logits - expected).max(), 1e-4 * np.abs(expected).max())
        self.assertEqual(routes.tolist(), tensor("routes").tolist())

    @needs("torch", "transformers")
    def test_the_example_compares_with_transformers(self):
        shown = subprocess.check_output([sys.executable, EXAMPLES / "compare_transformers.py", GOLDEN], text=True)
        self.assertIn("the same likeliest token at 100.0 %", shown)


class Package(unittest.TestCase):
    def test_the_example_tells_a_tale(self):
        shown = subprocess.check_output([sys.executable, EXAMPLES / "tale.py", "--ram", "160MiB"], text=True)
        self.assertRegex(shown, r"The wolf(.|\n)+tok/s, \d+ hits, \d+ misses")

    @unittest.skipIf("WHEEL" not in os.environ, "WHEEL names no wheel")
    def test_the_demo_is_found_beside_a_module_installed_elsewhere(self):
        with tempfile.TemporaryDirectory() as temp:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            subprocess.check_call([*pip, "--target", temp, os.environ["WHEEL"]])
            where = {**os.environ, "PYTHONPATH": temp}
            demo = subprocess.check_output([sys.executable, "-c", "import sws; print(sws.DEMO)"], text=True, env=where)
            self.assertTrue(Path(demo.strip(), "manifest.json").is_relative_to(Path(temp).resolve()), demo)
            self.assertTrue(Path(demo.strip(), "manifest.json").exists(), demo)

    @needs("mypy")
    def test_stubs_agree_with_the_module(self):
        tests = Path(__file__).parent
        check = [sys.executable, "-m", "mypy.stubtest", "sws", "--allowlist", tests / "stubtest.txt"]
        check += ["--mypy-config-file", tests / "mypy.ini"]
        done = subprocess.run(check, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
