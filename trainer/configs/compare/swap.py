#!/usr/bin/env python3
"""Pairs of sentences, and the same pairs with two words that translate each other swapped on both sides.

    swap.py LASER MODEL DATA HELD_OUT OUT.tsv

LASER is the program, MODEL the mean whose embeddings of single words align them (mutual nearest neighbours with a cosine of at least
0.55, 0.1 above the next), DATA the folder with the training parts, HELD_OUT a keyed file of stsb_mt that is left out. OUT is keyed text for
`laser pack --keyed OUT --tokenizer … --max-tokens 96 --perturb -o runs/swap.packed`. Needs numpy and zstd.
"""
import collections
import os
import random
import re
import subprocess
import sys
import tempfile

import numpy as np

if len(sys.argv) != 6:
    sys.exit(__doc__)
LASER, MODEL, D, HELD, OUT = sys.argv[1:]
random.seed(9)
held=set(l.split('\t')[0] for l in open(HELD,encoding='utf-8'))
plan={'stsb_mt':1.0,'massive':0.25,'ntrex':0.5,'pratham_storybook':1.0,'bashkir1000':1.0,'tico19':0.15,'nusax':0.5,'tigrinya_vol':1.0,'nllb_seed':0.15,'hornmt':0.3}
stop=set("the a an and or but of to in on at for with from by is are was were be been it its this that these those he she they we you i his her their our your my me him them us not no do does did has have had will would can could should may might there here what which who how when where if as so than then also very".split())
word=re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
pairs=[]
for s,share in plan.items():
    g=collections.defaultdict(dict)
    for l in subprocess.run(['zstd','-dc','--long=31',os.path.join(D,s+'.tsv.zst')],capture_output=True,check=True).stdout.decode().split('\n'):
        if l:
            k,la,t=l.split('\t',2)
            if s=='stsb_mt' and k in held: continue
            g[k].setdefault(la,t)
    n0=len(pairs)
    for k,ts in g.items():
        if 'en' not in ts: continue
        e=list(word.finditer(ts['en']))
        if not 3<=len(e)<=22: continue
        for la,t in ts.items():
            if la!='en' and random.random()<share:
                x=list(word.finditer(t))
                if 3<=len(x)<=26: pairs.append((s,la,ts['en'],t))
    print(s,len(pairs)-n0)
random.shuffle(pairs)
by=collections.Counter(); keep=[]
for p in pairs:
    if by[p[1]]<2500: by[p[1]]+=1; keep.append(p)
pairs=keep; print(len(pairs),'pairs',len(by),'languages')
def content(t): return [m for m in word.finditer(t) if len(m.group())>=2]
words=sorted({m.group().lower() for p in pairs for t in p[2:] for m in content(t)})
print(len(words),'words')
with tempfile.TemporaryDirectory() as f:
    subprocess.run([LASER,'embed','-m',MODEL,'--format','npy','-o',f+'/words.npy'],input='\n'.join(words).encode(),check=True)
    E=np.load(f+'/words.npy')
ix={w:i for i,w in enumerate(words)}
def swap(t,a,b):
    if a.start()>b.start(): a,b=b,a
    A,B=a.group(),b.group()
    # capital letters stay where they were
    if A[0].isupper()!=B[0].isupper() and a.start()==word.search(t).start(): A,B=A[0].lower()+A[1:],B[0].upper()+B[1:]
    return t[:a.start()]+B+t[a.end():b.start()]+A+t[b.end():]
out=[];n=collections.Counter()
for s,la,e,t in pairs:
    me=[m for m in content(e) if len(m.group())>=3 and m.group().lower() not in stop]; mx=content(t)
    if len(me)<2 or len(mx)<2: continue
    S=E[[ix[m.group().lower()] for m in me]]@E[[ix[m.group().lower()] for m in mx]].T
    al=[]
    for i in range(len(me)):
        j=int(S[i].argmax())
        if S[i,j]>=0.55 and int(S[:,j].argmax())==i and (np.sort(S[i])[-2] if len(mx)>1 else 0)<S[i,j]-0.1: al.append((i,j))
    al=[(i,j) for i,j in al if sum(me[i].group().lower()==m.group().lower() for m in me)==1]
    if len(al)<2: continue
    (i,j),(k,l)=random.sample(al,2)
    e2,t2=swap(e,me[i],me[k]),swap(t,mx[j],mx[l])
    if e2==e or t2==t: continue
    out.append((la,e,t,e2,t2)); n[la]+=1
print(len(out),'swapped,',len(n),'languages',n.most_common(12),n.most_common()[-8:])
with open(OUT,'w',encoding='utf-8') as f:
    for q,(la,e,t,e2,t2) in enumerate(out):
        for tag,a,b in (('a',e,t),('b',e2,t2)):
            k='%07d%s'%(q,tag)
            for g,x in sorted((('en',a),(la,b))): f.write(f'{k}\t{g}\t{x}\n')
