#!/usr/bin/env python3
"""Shards in S3 as `moto` has it, whose server checks each signature with botocore's code: pushed, run with the
text of local shards, and refused with keys that are wrong.

    pip install 'moto[server]==5.2.5'
    tests/s3_moto.py [PROGRAM]
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# The first five actions make a user with keys; all others must be signed by it.
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "5"

import boto3  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
SHARDS = ROOT / "shards/tales-moe"
ADDRESS = "s3://models-of-ours/a/tales"
EVERYTHING = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}


def keys_of(endpoint):
    """A user who may do everything, and the bucket. Five actions."""
    any_key = {"aws_access_key_id": "none", "aws_secret_access_key": "none", "region_name": "us-east-1"}
    iam = boto3.client("iam", endpoint_url=endpoint, **any_key)
    iam.create_user(UserName="sws")
    policy = iam.create_policy(PolicyName="s3", PolicyDocument=json.dumps(EVERYTHING))
    iam.attach_user_policy(UserName="sws", PolicyArn=policy["Policy"]["Arn"])
    made = iam.create_access_key(UserName="sws")["AccessKey"]
    boto3.client("s3", endpoint_url=endpoint, **any_key).create_bucket(Bucket="models-of-ours")
    return made["AccessKeyId"], made["SecretAccessKey"]


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/release/sws"
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    key, secret = keys_of(endpoint)
    with tempfile.TemporaryDirectory() as home:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        environment |= {"HOME": home, "XDG_CACHE_HOME": f"{home}/cache", "SWS_CONFIG": "", "AWS_ENDPOINT_URL": endpoint}
        environment |= {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}

        def sws(*args, **more):
            return subprocess.run([program, *args], env=environment | more, capture_output=True, text=True, check=False)

        def text(model):
            done = sws("run", model, "--prompt", "The wolf", "--seed", "7", "-n", "100", "--ram", "64MiB")
            assert done.returncode == 0, done.stderr
            return done.stdout

        for name, value in [("AWS_SECRET_ACCESS_KEY", "other"), ("AWS_ACCESS_KEY_ID", "other")]:
            refused = sws("push", SHARDS, ADDRESS, **{name: value})
            assert refused.returncode == 2 and name in refused.stderr, refused.stderr
            assert "other" not in refused.stderr and secret not in refused.stderr
            print(refused.stderr.strip())
        pushed = sws("push", SHARDS, ADDRESS)
        assert pushed.returncode == 0, pushed.stderr
        print(pushed.stdout.strip())
        again = sws("push", SHARDS, ADDRESS)
        assert "there already" in again.stdout, again.stderr
        assert text(ADDRESS) == text(SHARDS), "other texts"
        nothing = sws("run", "s3://models-of-ours/nothing")
        assert nothing.returncode == 2 and "no manifest.json" in nothing.stderr, nothing.stderr
        nobody = sws("run", "s3://nobody-of-ours/nothing")
        assert nobody.returncode == 2 and "no bucket `nobody-of-ours`" in nobody.stderr, nobody.stderr
    server.stop()
    print("every signature was accepted, and the text is that of local shards")


if __name__ == "__main__":
    main()
