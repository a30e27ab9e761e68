import importlib
import os
import sys
import time
import zipfile
from pathlib import Path

given = dict(argument.lstrip("+").split("=", 1) for argument in sys.argv[1:])
text = {name: value.strip("'") for name, value in given.items()}
module, _, function = text["env.wrapper._target_"].rpartition(".")
make_env = getattr(importlib.import_module(module), function)
env = make_env(folder=text["env.wrapper.folder"], seed=int(text["seed"]), id="crafter_reward", screen_size=64)
resumed = text.get("checkpoint.resume_from")
step = int(Path(resumed).name.split("_")[1]) if resumed else 0
logs = Path(text["log_root"], text["root_dir"], text["run_name"])
checkpoints = logs / f"version_{len(list(logs.glob('version_*')))}" / "checkpoint"
checkpoints.mkdir(parents=True)
print("resumed from", step)
env.reset(seed=int(text["seed"]))
while step < int(text["algo.total_steps"]):
    step += 1
    *_, terminated, truncated, _ = env.step(step % 17)
    if terminated or truncated:
        env.reset()
    if step % int(text["checkpoint.every"]) == 0:
        with zipfile.ZipFile(checkpoints / f"ckpt_{step}_0.ckpt", "w") as file:
            file.writestr("state", "x")
    if step == int(os.environ.get("FAKE_FAILS_AT", "-1")):
        raise RuntimeError("CUDA out of memory")
    if step == int(os.environ.get("FAKE_WAITS_AT", "-1")):
        (checkpoints / "ckpt_99999_0.ckpt").write_bytes(b"torn")
        time.sleep(60)
env.close()
