/** A part of a page that is loaded when it is shown first. */
import type { ComponentType } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { message } from '../api/client'
import { part } from '../api/parts'
import { t } from '../strings'
import { Button, Note, Skeleton } from './basic'

type Load<P> = () => Promise<{ default: ComponentType<P> }>
/** After what a page does when its data is there. */
const AHEAD_MS = 200
const loaded = new WeakMap<object, unknown>()

/** Load a part that is probably shown soon, once the page has nothing else to do; returns how to give that up. */
export function ahead<P>(load: Load<P>): () => void {
  const timer = setTimeout(() => void load().then((module) => loaded.set(load, module.default)).catch(() => undefined), AHEAD_MS)
  return () => clearTimeout(timer)
}

export function Lazy<P extends object>({ load, props }: { load: Load<P>; props: P }) {
  const [view, setView] = useState<{ of: ComponentType<P> } | null>(() => {
    const of = loaded.get(load) as ComponentType<P> | undefined
    return of ? { of } : null
  })
  const [failed, setFailed] = useState<string | null>(null)
  useEffect(() => {
    if (!view) part(load).then((module) => setView({ of: module.default }), (error: unknown) => setFailed(message(error)))
  }, [])
  if (failed) return <Note kind="bad">{failed} <Button onClick={() => location.reload()}>{t.retry}</Button></Note>
  if (!view) return <Skeleton />
  const Of = view.of
  return <Of {...props} />
}
