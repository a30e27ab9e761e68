"""PPO on symbols of Crafter: a cheap stand-in to screen ideas."""
import argparse, json, os, sys, time
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import numpy as np, torch, numba
from torch import nn
import torch.nn.functional as F
from achieve.envs.crafter.vec import CrafterVecEnv
from achieve.envs.crafter.data import ACHIEVEMENTS, ITEMS

W, H = 9, 7
CH = 13 + 7  # materials, kinds
SIZE = 20*7 + 20 + 32 + 4 + 2

@numba.njit(cache=True)
def symbols(mat, at, kind, grown, px, py, fx, fy, inv, day, sleep, out):
    n = len(px)
    out[:] = 0
    near = np.zeros(20, np.int64); nx = np.zeros(20, np.int64); ny = np.zeros(20, np.int64)
    for i in range(n):
        near[:] = 1000
        for a in range(9):
            for b in range(7):
                x = px[i] + a - 4; y = py[i] + b - 3
                if a == 4 and b == 3: continue
                d = abs(a-4) + abs(b-3)
                for w in range(2):
                    if x < 0 or y < 0 or x >= 64 or y >= 64:
                        t = 0
                    elif w == 0:
                        t = mat[i, x, y]
                    else:
                        k = at[i, x, y]
                        if k == 0: continue
                        kk = kind[i, k-1]
                        if kk == 6 and grown[i, k-1] > 300: kk = 1
                        t = 13 + kk
                    if d < near[t]:
                        near[t] = d; nx[t] = a-4; ny[t] = b-3
                    if a-4 == fx[i] and b-3 == fy[i]:
                        out[i, 140 + t] = 1
        for t in range(20):
            if near[t] < 1000:
                o = t*7
                out[i, o] = 1
                out[i, o+1] = 1 if nx[t] < 0 else 0
                out[i, o+2] = 1 if nx[t] > 0 else 0
                out[i, o+3] = 1 if ny[t] < 0 else 0
                out[i, o+4] = 1 if ny[t] > 0 else 0
                out[i, o+5] = 1 if abs(nx[t]) <= 1 and abs(ny[t]) <= 1 else 0
                out[i, o+6] = near[t]/4.0
        o = 160
        for j in range(16):
            out[i, o+j] = inv[i, j] / 9.0 * 2
            out[i, o+16+j] = 1 if inv[i, j] > 0 else 0
        o += 32
        if fx[i] < 0: out[i,o] = 1
        if fx[i] > 0: out[i,o+1] = 1
        if fy[i] < 0: out[i,o+2] = 1
        if fy[i] > 0: out[i,o+3] = 1
        out[i, o+4] = day[i]
        out[i, o+5] = sleep[i]

class Sym:
    def __init__(self, n, seed):
        self.env = CrafterVecEnv(n, seed, 1, "none", size=(18, 18))
        self.n = n
        self.buf = None
        self.env.reset()
    def obs(self):
        w = self.env._batch.worlds
        out = np.zeros((self.n, SIZE), np.float32)
        pl = w.objects[:, 0]
        K = 512
        symbols(w.material, w.object_at, np.ascontiguousarray(w.objects["kind"][:, :K]) , np.ascontiguousarray(w.objects["grown"][:, :K]), np.ascontiguousarray(pl["x"]), np.ascontiguousarray(pl["y"]), np.ascontiguousarray(pl["facing_x"]), np.ascontiguousarray(pl["facing_y"]), np.ascontiguousarray(w.var["inventory"]), np.ascontiguousarray(w.var["daylight"]), np.ascontiguousarray(w.var["sleeping"]), out)
        return out

def ortho(l, g):
    nn.init.orthogonal_(l.weight, g); nn.init.zeros_(l.bias); return l

class Net(nn.Module):
    def __init__(self, d, hidden, extra):
        super().__init__()
        self.a = nn.Sequential(ortho(nn.Linear(d, hidden), 2**.5), nn.LayerNorm(hidden), nn.ReLU(), ortho(nn.Linear(hidden, hidden), 2**.5), nn.LayerNorm(hidden), nn.ReLU())
        self.pi = ortho(nn.Linear(hidden+extra, 17), .01); self.v = ortho(nn.Linear(hidden+extra, 1), .1)
    def forward(self, x, m):
        h = self.a(x)
        if m is not None: h = torch.cat([h, m], 1)
        return self.pi(h), self.v(h)[:, 0]

def main():
    p = argparse.ArgumentParser()
    A = p.add_argument
    A("--seed", type=int, default=0); A("--steps", type=int, default=1_000_000); A("--envs", type=int, default=16); A("--T", type=int, default=256)
    A("--hidden", type=int, default=256); A("--gamma", type=float, default=.95); A("--lam", type=float, default=.65); A("--lr", type=float, default=3e-4)
    A("--epochs", type=int, default=3); A("--mb", type=int, default=8); A("--clip", type=float, default=.2); A("--ent", type=float, default=.01)
    A("--eps", type=float, default=0.); A("--add", type=float, default=0.); A("--memory", default="none"); A("--rarity", type=float, default=0.)
    A("--kl", type=float, default=0.); A("--sil", type=float, default=0.); A("--sil-kind", default="unlock"); A("--gamma-end", type=float, default=0); A("--lam-end", type=float, default=0)
    A("--bar", type=float, default=0.); A("--bar-p", type=float, default=0.01); A("--tsallis", type=float, default=0.)
    A("--advw", type=float, default=0.); A("--pcomp", type=float, default=0.); A("--hi", type=float, default=0.)
    A("--try", dest="trye", type=float, default=0.); A("--tryn", type=int, default=0); A("--ez", type=float, default=0.)
    A("--feps", type=float, default=0.); A("--fq", type=float, default=.8); A("--ftemp", type=float, default=1.); A("--fent", type=float, default=0.)
    A("--lr-end", type=float, default=0.); A("--ent-end", type=float, default=0.); A("--ent-full", type=int, default=0); A("--vfc", type=float, default=.5)
    A("--rsil", type=float, default=0.); A("--rsil-n", type=int, default=256); A("--rsil-cap", type=int, default=200_000); A("--rsil-v", type=float, default=0.); A("--rsil-from", type=int, default=50_000)
    A("--kindof", default="label"); A("--rlim", type=float, default=5.)
    A("--epsfrom", type=int, default=0); A("--name", default="x")
    a = p.parse_args()
    torch.set_num_threads(1); torch.manual_seed(a.seed)
    N, T = a.envs, a.T
    env = Sym(N, a.seed)
    extra = {"none": 0, "last": 22, "set": 22}[a.memory]
    net = Net(SIZE, a.hidden, extra); opt = torch.optim.Adam(net.parameters(), a.lr)
    vm, vs, vc = 0., 1., 1e-5  # value norm (ema debiased)
    e1 = e2 = deb = 0.
    rate = np.full(22, .02)
    mem = np.zeros((N, 22), np.float32)
    prev = np.zeros((N, 22), np.int64)
    log = []; eps_log = []
    O = np.zeros((T+1, N, SIZE), np.float32); M = np.zeros((T+1, N, max(extra,1)), np.float32)
    Ac = np.zeros((T, N), np.int64); LP = np.zeros((T, N), np.float32); R = np.zeros((T, N), np.float32); D = np.zeros((T, N), bool); V = np.zeros((T+1, N), np.float32)
    UN = np.zeros((T, N, 22), bool)
    PMIN = np.zeros((T, N), np.float32)
    step = 0; t0 = time.time(); obs = env.obs()
    ending = []
    hist = []
    SO = []; 
    rng = np.random.default_rng(a.seed)
    if a.rsil:
        cap = a.rsil_cap; QO = np.zeros((cap, SIZE), np.float32); QA = np.zeros(cap, np.int64); QR = np.zeros(cap, np.float32); QM = np.zeros((cap, max(extra,1)), np.float32); QP = np.zeros(cap, np.float32); qn = 0; qi = 0
        pend = [[] for _ in range(N)]
    since = np.zeros(N, np.int64); tried = np.zeros((N, 17), bool); trying = np.full(N, -1)
    run_len = np.zeros(N, int); run_a = np.zeros(N, int)
    FR = np.zeros((T, N), np.float32); count = np.zeros(N); finals = []
    def probs_of(logits, fr):
        if a.ftemp != 1: logits = logits / (1 + (a.ftemp-1)*fr[:, None])
        pr = logits.softmax(1)
        e = a.eps + a.feps*fr[:, None] if a.feps else a.eps
        return (1-e)*pr + e/17 if (a.eps or a.feps) else pr
    while step < a.steps:
        frac = min(1., max(0., (step-300_000)/400_000))
        gamma = a.gamma + (a.gamma_end - a.gamma)*frac if a.gamma_end else a.gamma
        lam = a.lam + (a.lam_end - a.lam)*frac if a.lam_end else a.lam
        if a.lr_end: opt.param_groups[0]["lr"] = a.lr + (a.lr_end-a.lr)*step/a.steps
        ent_coef = a.ent + (a.ent_end-a.ent)*step/a.steps if a.ent_end else a.ent
        with torch.no_grad():
            for t in range(T):
                O[t] = obs; M[t] = mem[:, :max(extra,1)] if extra else 0
                lg, v = net(torch.from_numpy(obs), torch.from_numpy(mem) if extra else None)
                front = (count >= (np.quantile(finals[-200:], a.fq) if len(finals) > 50 else 99)).astype(np.float32)
                FR[t] = front
                pr = probs_of(lg, torch.from_numpy(front))
                if a.ez:  # repeat a random interaction: per step chance
                    pass
                act = torch.multinomial(pr, 1)[:, 0]
                lp = pr.gather(1, act[:, None]).log()[:, 0]
                an = act.numpy()
                Ac[t] = an; LP[t] = lp.numpy(); V[t] = v.numpy()*vs + vm
                _, r, te, tr, _ = env.env.step(an)
                done = te | tr
                cur = env.env._batch.worlds.var["unlocked"].copy() if False else env.env._batch.worlds.var["achievements"].copy()
                fin = env.env._batch.results["achievements"]
                now = np.where(done[:, None], fin, cur)
                un = (now > 0) & (prev == 0)
                if a.kindof == "order":
                    ks = np.zeros_like(un)
                    for i_ in np.flatnonzero(un.any(1)):
                        c_ = int(count[i_]); m_ = int(un[i_].sum()); ks[i_, min(c_, 21):min(c_+m_, 22)] = True
                else: ks = un
                UN[t] = ks
                prev = np.where(done[:, None], 0, cur)
                r = r.astype(np.float32)
                finals.extend(count[done] + un[done].sum(1)); count = np.where(done, 0, count + un.sum(1))
                if extra:
                    got = un.any(1)
                    if a.memory == "last": mem[got] = un[got]
                    else: mem = np.maximum(mem, un)
                    mem[done] = 0
                    mem = mem.astype(np.float32)
                if a.rarity:
                    w = np.clip((.2/rate)**a.rarity, 1, a.rlim)
                    r = r + (ks*(w-1)).sum(1)
                R[t] = r; D[t] = done
                step += N
                for i in np.flatnonzero(done):
                    s = fin[i] > 0
                    s_k = np.arange(22) < s.sum() if a.kindof == "order" else s
                    rate = rate*.998 + .002*s_k; rate = np.maximum(rate, 1e-3)
                    eps_log.append((step, s.copy()))
                obs = env.obs()
            _, v = net(torch.from_numpy(obs), torch.from_numpy(mem) if extra else None); V[T] = v.numpy()*vs+vm
            O[T] = obs
        adv = np.zeros((T, N), np.float32); last = 0
        for t in reversed(range(T)):
            al = 1 - D[t]
            de = R[t] + gamma*al*V[t+1] - V[t]
            last = de + gamma*lam*al*last; adv[t] = last
        ret = adv + V[:T]
        beta = 0.99
        e1 = beta*e1 + (1-beta)*ret.mean(); e2 = beta*e2 + (1-beta)*(ret**2).mean(); deb = beta*deb + 1-beta
        nm = e1/deb; ns = max(e2/deb - nm**2, 1e-2)**.5
        with torch.no_grad():  # preserve outputs (PopArt)
            net.v.weight.mul_(vs/ns); net.v.bias.mul_(vs).add_(vm - nm).div_(ns)
        vm, vs = float(nm), float(ns)
        bf = torch.from_numpy(FR.reshape(-1).copy())
        bo = torch.from_numpy(O[:T].reshape(-1, SIZE)); bm = torch.from_numpy(M[:T].reshape(T*N, -1)) if extra else None
        ba = torch.from_numpy(Ac.reshape(-1)); bl = torch.from_numpy(LP.reshape(-1)); bd = torch.from_numpy(((adv-adv.mean())/(adv.std()+1e-8)).reshape(-1)); br = torch.from_numpy((ret.reshape(-1)-vm)/vs)
        if a.sil:
            idx = np.flatnonzero(UN.any(2).reshape(-1))
            for j in idx:
                kinds = np.flatnonzero(UN.reshape(-1, 22)[j])
                SO.append((O[:T].reshape(-1, SIZE)[j].copy(), int(Ac.reshape(-1)[j]), int(kinds[0]), M[:T].reshape(T*N, -1)[j].copy()))
            if len(SO) > 20000: SO = SO[-20000:]
        if a.rsil:
            for i in range(N):
                for t in range(T):
                    pend[i].append((O[t, i].copy(), int(Ac[t, i]), float(R[t, i]), float(V[t, i]), M[t, i].copy()))
                    if D[t, i]:
                        g = 0.
                        for (o_, a_, r_, v_, m_) in reversed(pend[i]):
                            g = r_ + gamma*g
                            if g > v_ + .1:
                                QO[qi] = o_; QA[qi] = a_; QR[qi] = g; QM[qi] = m_; QP[qi] = g - v_; qi = (qi+1) % cap; qn = max(qn, qi)
                        pend[i] = []
            if qn: qc = np.cumsum(QP[:qn].astype(np.float64)**.6)
        kls = []; cf = []; ents = []
        for ep in range(a.epochs):
            order = torch.randperm(T*N)
            stop = False
            for b in order.chunk(a.mb):
                lg, v = net(bo[b], bm[b] if extra else None)
                pr = probs_of(lg, bf[b]); lpall = (pr+1e-12).log()
                lp = lpall.gather(1, ba[b][:, None])[:, 0]
                lr_ = lp - bl[b]; ratio = lr_.exp()
                hi = 1 + (a.hi or a.clip)
                if a.add:
                    old = bl[b].exp(); hi_t = torch.clamp((old + a.add)/old, min=1+a.clip)
                    cl = torch.minimum(torch.clamp(ratio, min=1-a.clip), hi_t)
                else:
                    cl = ratio.clamp(1-a.clip, hi)
                pg = -torch.min(ratio*bd[b], cl*bd[b]).mean()
                entv = -(pr*lpall).sum(1); ent = entv.mean()
                if a.fent: ent_l = (entv*(1+(a.fent-1)*bf[b])).mean()
                else: ent_l = ent
                loss = pg - ent_coef*ent_l + a.vfc*(v-br[b]).square().mean()
                if a.bar:
                    loss = loss + a.bar*F.relu(np.log(a.bar_p) - lg.log_softmax(1)).sum(1).mean()
                if a.tsallis:
                    loss = loss - a.tsallis * 2*(lg.softmax(1).clamp(min=1e-8).sqrt().sum(1)-1).mean()
                if a.sil and len(SO) > 256:
                    cnt = np.bincount([s[2] for s in SO], minlength=22)
                    if not hasattr(main, "pk") or main.n != len(SO):
                        w = 1/cnt[[s[2] for s in SO]]**.5; main.pk = np.cumsum(w/w.sum()); main.n = len(SO)
                    pick = np.searchsorted(main.pk, rng.random(64)).clip(0, len(SO)-1)
                    so = torch.from_numpy(np.stack([SO[k][0] for k in pick])); sa = torch.tensor([SO[k][1] for k in pick])
                    sm = torch.from_numpy(np.stack([SO[k][3] for k in pick])) if extra else None
                    sl, _ = net(so, sm)
                    loss = loss + a.sil*F.cross_entropy(sl, sa)
                if a.rsil and qn > 2000 and step > a.rsil_from:
                    pick = np.searchsorted(qc, rng.random(a.rsil_n)*qc[-1]).clip(0, qn-1)
                    sl, sv = net(torch.from_numpy(QO[pick]), torch.from_numpy(QM[pick]) if extra else None)
                    gap = (torch.from_numpy(QR[pick]) - (sv*vs + vm)).clamp(min=0)
                    QP[pick] = gap.detach().numpy()
                    loss = loss - a.rsil*(sl.log_softmax(1).gather(1, torch.from_numpy(QA[pick])[:, None])[:, 0]*gap.detach()).mean()
                    if a.rsil_v: loss = loss + a.rsil_v*.5*(gap/vs).square().mean()
                opt.zero_grad(); loss.backward(); gn = nn.utils.clip_grad_norm_(net.parameters(), .5); opt.step()
                with torch.no_grad():
                    kls.append((ratio-1-lr_).mean().item()); cf.append(((ratio-1).abs() > a.clip).float().mean().item()); ents.append(ent.item())
            if a.kl and np.mean(kls[-a.mb:]) > a.kl: break
        if (step // (N*T)) % 12 == 0:
            rec = np.array([s for st, s in eps_log if st > step-50_000])
            hist.append((step, rec.mean(0).tolist() if len(rec) else None, len(rec)))
            if "-v" in os.environ.get("V", ""): 
                print(step, f"{time.time()-t0:.0f}s n={rec.sum(1).mean():.2f} kl={np.mean(kls):.3f} cf={np.mean(cf):.2f} ent={np.mean(ents):.2f} grad={gn:.2f}", "sp %.2f coal %.2f furn %.2f iron %.3f ipick %.3f isw %.3f plant %.3f diam %.3f" % tuple(rec.mean(0)[[ACHIEVEMENTS.index(k) for k in ("make_stone_pickaxe","collect_coal","place_furnace","collect_iron","make_iron_pickaxe","make_iron_sword","eat_plant","collect_diamond")]]), flush=True)
    S = np.array([s for _, s in eps_log]); ST = np.array([st for st, _ in eps_log])
    def score(m): return float(np.exp(np.log1p(100*S[m].mean(0)).mean())-1)
    k = lambda n: ACHIEVEMENTS.index(n)
    out = dict(name=a.name, seed=a.seed, score=score(ST > 0), last=score(ST > a.steps-100_000), n_all=float(S.sum(1).mean()), n400=float(S[ST<=400_000].sum(1).mean()), n_last=float(S[ST>a.steps-100_000].sum(1).mean()), secs=time.time()-t0, args=sys.argv[1:])
    for n in ("collect_stone","make_stone_pickaxe","collect_iron","make_iron_pickaxe","make_iron_sword","eat_plant","collect_diamond","wake_up"):
        out[n] = round(100*float(S[:, k(n)].mean()), 3)
        out[n+"_last"] = round(100*float(S[ST>a.steps-100_000, k(n)].mean()), 3)
    # step at which stone pickaxe is first in a fifth of the last 100 episodes
    sp = S[:, k("make_stone_pickaxe")].astype(float); roll = np.convolve(sp, np.ones(100)/100, "valid"); w = np.flatnonzero(roll >= .2)
    out["t_sp"] = int(ST[w[0]+99]) if len(w) else None
    print(json.dumps(out), flush=True)
    with open("symbols-ppo.jsonl", "a") as f: f.write(json.dumps(out)+"\n")
main()
