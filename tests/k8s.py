#!/usr/bin/env python3
"""Checks the files of deploy/k8s without a cluster: built-in kinds against the schemas of Kubernetes, others
against their definitions where those are given, unknown fields included; and that what one names, another has.

    pip install kubernetes-validate==1.37.0
    tests/k8s.py [--definitions DIR]

DIR has definitions of PodMonitor, ScaledObject and InferencePool as YAML, from the projects that make them.
"""

import argparse
import copy
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

FILES = Path(__file__).resolve().parent.parent / "deploy/k8s"
VERSION = "1.37"


def strict(schema):
    """The schema, which refuses fields that it does not name."""
    if not isinstance(schema, dict):
        return schema
    schema = {name: strict(value) if name != "properties" else value for name, value in schema.items()}
    if "properties" in schema:
        schema["properties"] = {name: strict(value) for name, value in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
    return schema


class Definitions:
    """Schemas of kinds that are not of Kubernetes itself."""

    def __init__(self, directory):
        self.schemas = {}
        for file in sorted(Path(directory).glob("*.y*ml")) if directory else ():
            for found in yaml.safe_load_all(file.read_text()):
                for version in found["spec"]["versions"] if found and "spec" in found else ():
                    name = f"{found['spec']['group']}/{version['name']}", found["spec"]["names"]["kind"]
                    schema = copy.deepcopy(version["schema"]["openAPIV3Schema"])
                    # That of metadata is the API's own.
                    schema["properties"]["metadata"] = {"type": "object"}
                    self.schemas[name] = strict({**schema, "x-kubernetes-preserve-unknown-fields": False})

    def check(self, item):
        """Checks an item. Returns false without a schema for it."""
        schema = self.schemas.get((item["apiVersion"], item["kind"]))
        if schema is not None:
            jsonschema.Draft7Validator(schema).validate(item)
        return schema is not None


def check(item, definitions):
    """Checks an item against its schema. Returns a word on how."""
    if definitions.check(item):
        return "by its definition"
    if "." in item["apiVersion"].partition("/")[0] and not item["apiVersion"].startswith(("apps/", "networking.k8s.io/")):
        return "not checked: its definition is not given"
    kubernetes_validate.validate(item, VERSION, strict=True)
    return f"by Kubernetes {VERSION}"


def fits(selector, labels):
    return selector and selector.items() <= labels.items()


def references(items):
    """Names that lead nowhere."""
    of = lambda kind: [item for item in items if item["kind"] == kind]
    server, = of("StatefulSet")
    template = server["spec"]["template"]
    labels, container = template["metadata"]["labels"], template["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    secrets = {item["metadata"]["name"]: item["stringData"] for item in of("Secret")}
    volumes = {claim["metadata"]["name"] for claim in server["spec"]["volumeClaimTemplates"]}
    budget = container["resources"]["limits"].get("memory")
    wrong = [
        (not fits(server["spec"]["selector"]["matchLabels"], labels), "the StatefulSet selects other pods"),
        (budget is None, "the server has no limit of memory, which is its budget"),
        ("--ram" in container["args"], "the server has a budget beside its limit"),
    ]
    for each in [container, *template["spec"]["initContainers"]]:
        mounts = {mount["name"] for mount in each["volumeMounts"]}
        wrong.append((mounts != volumes, f"{each['name']} mounts {mounts}, and there are {volumes}"))
        for source in each.get("envFrom", ()):
            wrong.append((source["secretRef"]["name"] not in secrets, f"{each['name']} has no secret"))
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"]:
        how = container[probe].get("httpGet") or container[probe]["tcpSocket"]
        wrong.append((how["port"] not in ports, f"{probe} asks a port that is not there"))
    for service in of("Service"):
        wrong.append((not fits(service["spec"]["selector"], labels), "the Service selects other pods"))
        wrong += [(port["targetPort"] not in ports, "the Service has no port") for port in service["spec"]["ports"]]
    for monitor in of("PodMonitor"):
        wrong.append((not fits(monitor["spec"]["selector"]["matchLabels"], labels), "the PodMonitor selects other pods"))
        for point in monitor["spec"]["podMetricsEndpoints"]:
            key = point["authorization"]["credentials"]
            wrong.append((point["port"] not in ports, "the PodMonitor reads a port that is not there"))
            wrong.append((key["key"] not in secrets.get(key["name"], ()), "the PodMonitor has no key"))
    for scaled in of("ScaledObject"):
        target = scaled["spec"]["scaleTargetRef"]
        same = target["kind"] == server["kind"] and target["name"] == server["metadata"]["name"]
        wrong.append((not same, "the ScaledObject scales something else"))
    for pool in of("InferencePool"):
        wrong.append((not fits(pool["spec"]["selector"]["matchLabels"], labels), "the InferencePool selects other pods"))
        wrong += [(port["number"] not in ports.values(), "the InferencePool has no port") for port in pool["spec"]["targetPorts"]]
        picker, = of("ConfigMap")
        config = yaml.safe_load(picker["data"]["picker.yaml"])
        types = {plugin["type"] for plugin in config["plugins"]}
        used = {use["pluginRef"] for profile in config["schedulingProfiles"] for use in profile["plugins"]}
        wrong.append((not used <= types, f"the picker uses {used - types} without a plugin"))
        extractor, = [plugin["parameters"] for plugin in config["plugins"] if plugin["type"] == "core-metrics-extractor"]
        names = {engine["name"] for engine in extractor["engineConfigs"]}
        wrong.append((labels.get("llm-d.ai/engine-type") not in names, "the picker does not know the pods' engine"))
        wrong.append((extractor["defaultEngine"] not in names, "the picker does not know its default engine"))
    return [words for is_wrong, words in wrong if is_wrong]


def controls(items, definitions):
    """Mistakes that have to be found: a field that is misspelt, in each item, and names that lead nowhere."""
    found = 0
    for item in items:
        if check(item, definitions).startswith("not checked") or item["kind"] in ("Secret", "ConfigMap"):
            continue
        for spoil in (lambda spec: spec.update(replicsa=1), lambda spec: spec.update(selector=5)):
            spoilt = copy.deepcopy(item)
            spoil(spoilt["spec"])
            try:
                check(spoilt, definitions)
            except (jsonschema.ValidationError, kubernetes_validate.ValidationError):
                found += 1
                continue
            sys.exit(f"k8s: a mistake in the {item['kind']} is not found: {spoilt['spec']}")
    spoilt = copy.deepcopy(items)
    for item in spoilt:
        if item["kind"] == "StatefulSet":
            item["spec"]["template"]["metadata"]["labels"] = {"app.kubernetes.io/name": "other"}
    assert len(references(spoilt)) >= 4, references(spoilt)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--definitions", metavar="DIR")
    arguments = parser.parse_args()
    definitions, items, failed = Definitions(arguments.definitions), [], False
    for file in sorted(FILES.glob("*.yaml")):
        for item in yaml.safe_load_all(file.read_text()):
            items.append(item)
            try:
                how = check(item, definitions)
            except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
                how, failed = f"FAILED: {error.message} at {'/'.join(map(str, error.path))}", True
            print(f"{file.name}: {item['kind']} {item['metadata']['name']}: {how}")
    for words in references(items):
        failed = True
        print("FAILED:", words)
    if not failed:
        print(f"{controls(items, definitions)} mistakes, made on purpose, are found")
    sys.exit(failed)


if __name__ == "__main__":
    main()
