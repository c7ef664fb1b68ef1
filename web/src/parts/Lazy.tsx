/** A part of a page that is loaded when it is shown first. */
import type { ComponentType } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { message } from '../api/client'
import { part } from '../api/parts'
import { t } from '../strings'
import { Button, Note, Skeleton } from './basic'

export function Lazy<P extends object>({ load, props }: { load: () => Promise<{ default: ComponentType<P> }>; props: P }) {
  const [view, setView] = useState<{ of: ComponentType<P> } | null>(null)
  const [failed, setFailed] = useState<string | null>(null)
  useEffect(() => {
    part(load).then((module) => setView({ of: module.default }), (error: unknown) => setFailed(message(error)))
  }, [])
  if (failed) return <Note kind="bad">{failed} <Button onClick={() => location.reload()}>{t.retry}</Button></Note>
  if (!view) return <Skeleton />
  const Of = view.of
  return <Of {...props} />
}
