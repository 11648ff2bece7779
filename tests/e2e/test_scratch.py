
import random, signal
from functools import partial
from e2e.command import *
from e2e.crash import *
from e2e.recipes import RECIPES
def test_x(fedgmr, tmp_path):
    write_recipe(tmp_path/"r.json", RECIPES["fedgmr"])
    o=fedgmr("run","r.json","output=whole",before=partial(count_calls,str(tmp_path/"n")))
    n=int((tmp_path/"n").read_text()); print(n)
    r=random.Random(1)
    for i in range(150):
        k=r.randrange(n//50,n)
        o=fedgmr("run","r.json",f"output=o{i}",before=partial(die_after_calls,k,signal.SIGINT))
        if o.code!=130 or "Traceback" in o.err: print("CASE",i,k,o.code,o.out,"|".join(l for l in o.err.splitlines() if "fedgmr/" in l or not l.startswith(" "))[-700:])
