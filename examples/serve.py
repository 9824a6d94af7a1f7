"""Serves a trained policy over HTTP, to any number of clients: python examples/serve.py RUN_DIR [--port 8000]

curl localhost:8000/act -H 'Content-Type: application/json' -d '{"obs": [0.1, 0.0, -0.2, 0.0]}'
{"action":1}
"""

import argparse
import sys
from typing import Any

import numpy as np
import uvicorn
from fastapi import Body, FastAPI, HTTPException

import zoo

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("run_dir", help="folder of the run whose policy is served")
parser.add_argument("--port", type=int, default=8000)
args = parser.parse_args()
try:
    policy = zoo.load(args.run_dir, device="auto")
except (zoo.UsageError, zoo.RunError) as error:
    sys.exit(str(error))
if policy.agent.memory():
    sys.exit("This policy remembers its episode and serves one client. zoo export has its memory in and out.")
app = FastAPI()


@app.post("/act")
def act(obs: list[Any] = Body(embed=True)) -> dict[str, Any]:  # noqa: B008 - one observation, or a batch of them
    try:
        array = np.array(obs)
        if array.dtype.kind in "iu":  # frames are bytes; those that were scaled are refused
            array = np.array(obs, policy.agent.spec.obs_dtype)
        return {"action": policy.act(array).tolist()}
    except (ValueError, TypeError, OverflowError) as error:
        raise HTTPException(422, str(error)) from error


if __name__ == "__main__":
    uvicorn.run(app, port=args.port)
